// Duplicates: groups of the same picture side by side, and what to do with each image.

import { get, image, put, remove } from "./api.js";
import { ask, bytes, count, date, h, icon, plural, say, state } from "./dom.js";
import { go, link } from "./route.js";
import { choice, last, more, roving, service } from "./shared.js";

const PAGE = 20; // groups per request
const LEVELS = [
	["copy", "Copies", "The same picture: saved again, resized, or mildly edited."],
	["similar", "Similar", "Stronger edits too, and shots taken one after the other."],
];

export function showDuplicates(main, route, { failed }) {
	const { write, delete: mayDelete } = service.info.access;
	const level = route.level ?? "copy";
	const decisions = new Map();
	const elements = new Map(); // by id
	let groups = 0;
	let cursor = null;
	let busy = false;
	let stopped = false;

	const list = h("div.groups");
	const note = h("p.hint", "Looking for duplicates… With many images this takes a while.");
	const tally = h("p.tally");
	const exportList = h("button", { onclick: () => save().catch(failed) }, "Export the list");
	const deleteMarked = mayDelete ? h("button.danger", { onclick: () => deleteFiles().catch(failed) }, "Delete marked files…") : null;
	const bar = h("div.tallybar", { role: "region", "aria-label": "Decisions", hidden: true }, tally, exportList, deleteMarked);
	const end = more(() => fetch());
	main.append(
		h("section.bar", h("h1", "Duplicates"), choice("level", "How alike", LEVELS, level, (value) => go({ view: "duplicates", level: value }))),
		note,
		list,
		end.element,
		bar,
	);

	const focus = roving(list, ".copy", {
		k: (item) => decide([item.imageId, "keep"]),
		d: (item) => decide([item.imageId, "discard"]),
		u: (item) => decide([item.imageId, null]),
	});

	function mark(id) {
		const decision = decisions.get(id) ?? null;
		for (const element of elements.get(id) ?? []) {
			element.classList.toggle("kept", decision === "keep");
			element.classList.toggle("discarded", decision === "discard");
			for (const button of element.querySelectorAll("button[data-decision]")) button.setAttribute("aria-pressed", button.dataset.decision === decision);
		}
		const all = [...decisions.values()];
		const discarded = all.filter((each) => each === "discard").length;
		tally.textContent = `${count(all.filter((each) => each === "keep").length)} to keep, ${count(discarded)} to discard`;
		bar.hidden = !all.some(Boolean);
		if (deleteMarked) deleteMarked.disabled = !discarded;
	}

	/** Remembers decisions, [id, decision] each, in the index. */
	async function decide(...changes) {
		if (!write) return;
		const before = changes.map(([id]) => [id, decisions.get(id) ?? null]);
		const set = (some) => some.forEach(([id, decision]) => (decisions.set(id, decision), mark(id)));
		set(changes);
		say({ keep: "Kept", discard: "Marked to discard", null: "Undecided" }[changes.at(-1)[1]]);
		try {
			await put("decisions", { decisions: changes.map(([id, decision]) => ({ id, decision })) });
		} catch (error) {
			set(before);
			failed(error);
		}
	}

	async function save() {
		const rows = (await get("decisions")).decisions;
		const cell = (text) => `"${String(text).replaceAll('"', '""')}"`;
		const lines = ["id,decision", ...rows.map((row) => `${cell(row.id)},${cell(row.decision)}`)];
		const url = URL.createObjectURL(new Blob([lines.join("\r\n") + "\r\n"], { type: "text/csv" }));
		h("a", { href: url, download: "duplicates.csv" }).click();
		setTimeout(() => URL.revokeObjectURL(url), 10_000);
	}

	async function deleteFiles() {
		const ids = (await get("decisions")).decisions.filter((row) => row.decision === "discard").map((row) => row.id);
		const answer = await ask(
			h("h2", `Delete ${plural(ids.length, "file")}?`),
			h("p", "The files you marked are removed from the disk and from the library. This cannot be undone."),
			h("ul.names", ids.slice(0, 100).map((id) => h("li", id)), ids.length > 100 ? h("li", `and ${count(ids.length - 100)} more`) : null),
			h("form.actions", { method: "dialog" }, h("button", { type: "submit", autofocus: true }, "Cancel"), h("button.danger", { type: "submit", value: "delete" }, `Delete ${plural(ids.length, "file")}`)),
		);
		if (answer !== "delete") return;
		const { removed } = await remove("images", { ids, files: true });
		for (const id of ids) {
			decisions.delete(id);
			for (const element of elements.get(id) ?? []) element.remove();
		}
		service.info = await get("info");
		mark(null);
		say(`${plural(removed, "file")} deleted`);
		note.textContent = `${plural(removed, "file")} deleted.`;
		focus.refresh();
	}

	function drawGroup({ images }, number) {
		const best = images.find((each) => each.keep) ?? images[0];
		const suggest = () => decide(...images.map((each) => [each.id, each === best ? "keep" : "discard"]));
		const copies = images.map((each) => {
			decisions.set(each.id, decisions.get(each.id) ?? each.decision ?? null);
			const button = (decision, words, symbol, key) =>
				h("button", { tabindex: "-1", "data-decision": decision, "aria-pressed": "false", "aria-label": `${words}: ${each.name}`, title: `${words} (${key})`, onclick: () => decide([each.id, decisions.get(each.id) === decision ? null : decision]) }, icon(symbol), words);
			const frame = h("div.frame", h("a", { href: link({ view: "image", id: each.id }), tabindex: "-1" }, image(each.id, each.name, 256)));
			const element = h("li.copy", 
				frame,
				h("p.name", { title: each.id }, each.name),
				h("ul.differences", differences(each, best).map(([text, kind]) => h("li", { class: kind }, text))),
				write ? h("div.decide", button("keep", "Keep", "keep", "K"), button("discard", "Discard", "close", "D")) : null,
			);
			element.imageId = each.id; // an attribute would make text of a number
			elements.set(each.id, [...(elements.get(each.id) ?? []), element]);
			return element;
		});
		const label = `Group ${number}: ${plural(images.length, "image")}`;
		list.append(
			h("section.group", { "aria-label": label }, h("div.head", h("h2", label), write ? h("button.quiet.small", { onclick: suggest }, `Keep ${best.name}, discard the rest`) : null), h("ul.copies", copies)),
		);
		for (const each of images) mark(each.id);
		last.images.push(...images);
	}

	async function fetch() {
		if (busy) return;
		busy = true;
		try {
			const page = await get("duplicates", { level, cursor, limit: PAGE });
			if (stopped) return;
			for (const group of page.groups) drawGroup(group, ++groups);
			focus.refresh();
			cursor = page.next;
			end.set(Boolean(cursor));
			if (!groups) {
				note.remove();
				main.append(state("No duplicates", level === "copy" ? "No picture is here twice. “Similar” also finds stronger edits." : "No picture is here twice."));
			}
			note.textContent = `${plural(page.total ?? groups, "group")}. ${write ? "The first image of each is suggested to be kept: it has the most pixels. Arrow keys move, K keeps, D discards, U takes back." : "The server lets you look, but not decide."}${mayDelete ? "" : " Nothing is deleted here: export the list, and decide what to do with it."}`;
			say(plural(groups, "group"));
		} catch (error) {
			if (!stopped) {
				end.set(false);
				failed(error, groups ? undefined : list);
				note.textContent = "";
			}
		} finally {
			busy = false;
		}
	}

	last.images = [];
	last.search = null;
	fetch();
	return {
		title: "Duplicates",
		stop: () => {
			stopped = true;
			end.stop();
		},
	};
}

/** How an image differs from the one to keep: [words, "less" | "more" | ""]. */
function differences(each, best) {
	const lines = [];
	const share = (mine, theirs) => `${mine < theirs ? "−" : "+"}${Math.round(Math.abs(mine / theirs - 1) * 100)} %`;
	if (each.width && each.height) {
		const [mine, theirs] = [each.width * each.height, best.width * best.height];
		const other = each !== best && theirs && Math.abs(mine / theirs - 1) >= 0.005;
		lines.push([`${each.width} × ${each.height}${other ? ` (${share(mine, theirs)} pixels)` : ""}`, other ? (mine < theirs ? "less" : "more") : ""]);
	}
	if (each.bytes) {
		const other = each !== best && best.bytes && Math.abs(each.bytes / best.bytes - 1) >= 0.005;
		lines.push([`${bytes(each.bytes)}${other ? ` (${share(each.bytes, best.bytes)})` : ""}`, other ? (each.bytes < best.bytes ? "less" : "more") : ""]);
	}
	if (each.modified) {
		const [mine, theirs] = [each.modified, best.modified].map((time) => (typeof time === "number" ? time * 1000 : Date.parse(time)));
		const days = Math.round((mine - theirs) / 86_400_000);
		lines.push([`${date(each.modified)}${each !== best && days ? ` (${plural(Math.abs(days), "day")} ${days < 0 ? "older" : "newer"})` : ""}`, ""]);
	}
	if (each === best) lines.push(["suggested to keep", "more"]);
	return lines;
}
