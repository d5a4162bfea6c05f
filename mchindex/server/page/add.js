// Adding images: files or whole folders, with progress.

import {Gone, post} from "./api.js";
import {bytes, count, h, icon, plural, say, state} from "./dom.js";
import {READING, service} from "./shared.js";

const TOGETHER = 16; // files per request
const MOST = 32e6; // bytes per request

let waiting = []; // files dropped elsewhere on the page, for the next time that this view is shown
export const addLater = files => (waiting = files);

/** All files of a drop, those in folders too: [file, path]. */
export async function dropped(transfer) {
	const found = [];
	const promised = (entry, method) => new Promise((resolve, reject) => entry[method](resolve, reject));
	const walk = async (entry, folder) => {
		const path = folder + entry.name;
		if (entry.isFile) found.push([await promised(entry, "file"), path]);
		else {
			const reader = entry.createReader();
			// It gives at most 100 at a time, and none at the end.
			for (let some; (some = await promised(reader, "readEntries")).length; ) for (const each of some) await walk(each, `${path}/`);
		}
	};
	const entries = [...transfer.items].map(item => item.webkitGetAsEntry()).filter(Boolean);
	for (const entry of entries) await walk(entry, "");
	return found;
}

export function showAdd(main, route, {failed, changed, signal}) {
	const title = "Add";
	if (!service.info.access.write) {
		main.append(state("You can look, but not add", READING));
		return {title};
	}
	let stop = null;
	const pick = (id, webkitdirectory) => {
		const onchange = e => take([...e.target.files].map(file => [file, file.webkitRelativePath || file.name]));
		return h("input", {type: "file", multiple: true, hidden: true, id, webkitdirectory, onchange});
	};
	const files = pick("add-files", false);
	const folder = pick("add-folder", true);
	const progress = h("section.progress", {hidden: true});
	main.append(
		h(
			"section.zone",
			icon("upload"),
			h("h1", "Add pictures"),
			h("p", "Drop files or a whole folder here."),
			h("p.actions", h("button.primary", {onclick: () => files.click()}, "Choose files"), h("button", {onclick: () => folder.click()}, "Choose a folder")),
			files,
			folder,
		),
		progress,
	);

	async function take(list) {
		if (!list.length || stop) return;
		stop = new AbortController();
		const all = plural(list.length, "file");
		const most = service.info.limits.bytes;
		const tally = {added: 0, unchanged: 0, done: 0};
		const meter = h("progress", {max: list.length, value: 0, "aria-label": "Progress"});
		const words = h("p", `0 of ${all}`);
		const failures = h("ul.names", {tabindex: 0, "aria-label": "Files that could not be added", hidden: true});
		const end = h("button", {onclick: () => stop?.abort()}, "Stop");
		progress.replaceChildren(meter, words, h("p.actions", end), failures);
		progress.hidden = false;
		const fail = (name, reason) => {
			failures.append(h("li", h("b", name), ` ${reason}`));
			failures.hidden = false;
		};
		const summary = () => {
			const counts = {added: tally.added, "already there": tally.unchanged, "could not be added": failures.children.length};
			return Object.entries(counts).filter(([, n], i) => n || !i).map(([what, n]) => `${count(n)} ${what}`).join(", ");
		};
		try {
			while (list.length) {
				const batch = [];
				for (let size = 0; list.length && batch.length < TOGETHER && size < MOST; ) {
					const [file, name] = list.shift();
					size += file.size;
					if (file.size <= most) batch.push([file, name]);
					else {
						fail(name, `is too large: ${bytes(file.size)}. At most ${bytes(most)} are allowed.`);
						tally.done++;
					}
				}
				if (batch.length) await sendBatch(batch, stop.signal, tally, fail);
				meter.value = tally.done;
				words.textContent = `${count(tally.done)} of ${all}: ${summary()}`;
			}
			words.textContent = `Done: ${summary()}.`;
		} catch (error) {
			words.textContent = `Stopped after ${count(tally.done)} of ${all}: ${summary()}. Add the same files again to go on.`;
			failed(error);
		}
		stop = null;
		say(words.textContent);
		end.replaceWith(h("a.button.primary", {href: "#/"}, "Show the library"));
		await changed();
	}

	take(waiting);
	waiting = [];
	signal.addEventListener("abort", () => stop?.abort());
	return {title, take};
}

async function sendBatch(batch, signal, tally, fail) {
	const form = new FormData();
	for (const [file, name] of batch) form.append("file", file, name);
	try {
		const answer = await post("images", form, signal);
		tally.added += answer.added.length + answer.replaced.length;
		tally.unchanged += answer.unchanged.length;
		for (const {name, reason} of answer.failed) fail(name, reason);
	} catch (error) {
		if (error.name === "AbortError" || error instanceof Gone || [403, 429, 503].includes(error.status)) throw error;
		// One bad file must not keep the others of its batch out.
		if (batch.length > 1) {
			for (const each of batch) await sendBatch([each], signal, tally, fail);
			return;
		}
		fail(batch[0][1], error.message);
	}
	tally.done += batch.length;
}
