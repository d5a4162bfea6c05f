// Adding images: files or whole folders, with progress, and failures by name.

import { get, Gone, upload } from "./api.js";
import { bytes, count, h, icon, plural, say, state } from "./dom.js";
import { service } from "./shared.js";

const TOGETHER = 16; // files per request
const MOST = 32e6; // bytes per request

let waiting = []; // files dropped elsewhere on the page, for the next time that this view is shown

export function addLater(files) {
	waiting = files;
}

/** All files of a drop, those in folders too: [file, path]. */
export async function dropped(transfer) {
	const entries = [...transfer.items].filter((item) => item.kind === "file").map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile());
	const found = [];
	const walk = async (entry, prefix) => {
		if (entry instanceof File) found.push([entry, prefix + entry.name]);
		else if (entry?.isFile) found.push([await new Promise((resolve, reject) => entry.file(resolve, reject)), prefix + entry.name]);
		else if (entry?.isDirectory) {
			const reader = entry.createReader();
			for (;;) {
				const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject)); // at most 100 at a time
				if (!some.length) break;
				for (const each of some) await walk(each, `${prefix}${entry.name}/`);
			}
		}
	};
	for (const entry of entries) await walk(entry, "");
	return found;
}

export function showAdd(main, route, { failed, changed }) {
	if (!service.info.access.write) {
		main.append(state("You can look, but not add", ["This server was started without the right to add images, or your key only lets you read.", "Whoever runs it can add pictures with: mch add photos/"]));
		return { title: "Add", stop: () => {} };
	}
	let stop = null;
	const pick = (folder) => h("input", { type: "file", multiple: true, class: "hidden", tabindex: "-1", "aria-hidden": "true", id: folder ? "add-folder" : "add-files", webkitdirectory: folder, onchange: (event) => take([...event.target.files].map((file) => [file, file.webkitRelativePath || file.name])) });
	const files = pick(false);
	const folder = pick(true);
	const zone = h("section.zone",
		icon("upload"),
		h("h1", "Add pictures"),
		h("p", "Drop files or a whole folder here."),
		h("p.actions", h("button.primary", { onclick: () => files.click() }, "Choose files"), h("button", { onclick: () => folder.click() }, "Choose a folder")),
		files,
		folder,
	);
	const progress = h("section.progress", { hidden: true });
	main.append(zone, progress);

	async function take(list) {
		if (!list.length || stop) return;
		stop = new AbortController();
		const { signal } = stop;
		const most = service.info.limits?.bytes ?? Infinity;
		const tally = { added: 0, unchanged: 0, done: 0 };
		const meter = h("progress", { max: list.length, value: 0, "aria-label": "Progress" });
		const words = h("p", `0 of ${plural(list.length, "file")}`);
		const names = h("ul.names");
		const failures = h("details", { open: true, hidden: true }, h("summary"), names);
		const end = h("button", { onclick: () => stop?.abort() }, "Stop");
		progress.replaceChildren(meter, words, h("p.actions", end), failures);
		progress.hidden = false;
		const fail = (name, reason) => {
			names.append(h("li", h("b", name), ` ${reason}`));
			failures.hidden = false;
			failures.firstChild.textContent = `${plural(names.children.length, "file")} could not be added`;
		};
		const summary = () => `${count(tally.added)} added${tally.unchanged ? `, ${count(tally.unchanged)} already there` : ""}`;
		try {
			while (list.length) {
				const batch = [];
				for (let size = 0; list.length && batch.length < TOGETHER && (!batch.length || size + list[0][0].size <= MOST); ) {
					const [file, name] = list.shift();
					if (file.size > most) {
						fail(name, `is too large: ${bytes(file.size)}, and at most ${bytes(most)} are allowed`);
						tally.done++;
					} else {
						batch.push([file, name]);
						size += file.size;
					}
				}
				if (batch.length) await sendBatch(batch, signal, tally, fail);
				meter.value = tally.done;
				words.textContent = `${count(tally.done)} of ${plural(meter.max, "file")}: ${summary()}`;
			}
			words.textContent = `Done: ${summary()}.`;
		} catch (error) {
			words.textContent = `Stopped after ${count(tally.done)} of ${plural(meter.max, "file")}: ${summary()}. Add the same files again to go on.`;
			if (error.name !== "AbortError") failed(error);
		}
		stop = null;
		say(words.textContent);
		end.replaceWith(tally.added ? h("a.button.primary", { href: "#/" }, "Show the library") : "");
		if (tally.added) {
			service.info = await get("info").catch(() => service.info);
			changed();
		}
	}

	const taken = waiting;
	waiting = [];
	take(taken);
	return { title: "Add", take, stop: () => stop?.abort() };
}

async function sendBatch(batch, signal, tally, fail) {
	const form = new FormData();
	for (const [file, name] of batch) form.append("file", file, name);
	try {
		const answer = await upload("images", form, signal);
		tally.added += answer.added.length + answer.replaced.length;
		tally.unchanged += answer.unchanged.length;
		for (const { name, reason } of answer.failed) fail(name, reason);
	} catch (error) {
		// One bad file must not keep the others of its batch out.
		if (error.name === "AbortError" || error instanceof Gone || [401, 403, 429, 503].includes(error.status)) throw error;
		if (batch.length > 1) {
			for (const each of batch) await sendBatch([each], signal, tally, fail);
			return;
		}
		fail(batch[0][1], error.message);
	}
	tally.done += batch.length;
}
