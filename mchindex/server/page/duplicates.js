// Duplicates: groups of the same picture side by side, and what to do with each image.

import {download, get, image, put, remove} from "./api.js";
import {ask, bytes, count, date, h, icon, plural, say, state} from "./dom.js";
import {go, imageLink} from "./route.js";
import {choice, last, more, roving, service} from "./shared.js";

const PAGE = 20; // groups per request
const LEVELS = [
	["copy", "Copies", "Saved again, resized, or mildly edited"],
	["similar", "Similar", "Stronger edits too, and shots of one moment"],
];

export function showDuplicates(main, {level = "copy"}, {failed, changed, signal}) {
	const {write, delete: mayDelete} = service.info.access;
	const decisions = new Map(); // by id
	const elements = new Map(); // by id
	let groups = 0;
	let cursor;

	const list = h("div");
	const note = h("p.hint", "Looking for duplicates… With many images this takes a while.");
	const tally = h("p");
	const deleteButton = mayDelete && h("button.danger", {onclick: () => deleteFiles().catch(failed)}, "Delete marked files…");
	const bar = h("div.tallybar", {role: "region", "aria-label": "Decisions", hidden: true}, tally, h("button", {onclick: () => save().catch(failed)}, "Export the list"), deleteButton);
	const end = more(fetch, signal, error => {
		note.textContent = "";
		failed(error, groups ? null : list);
	});
	main.append(h("section.bar", h("h1", "Duplicates"), choice("level", "How alike", LEVELS, level, value => go({view: "duplicates", level: value}))), note, list, end.element, bar);

	const focus = roving(list, ".copy", {
		k: item => decide([item.imageId, "keep"]),
		d: item => decide([item.imageId, "discard"]),
		u: item => decide([item.imageId, null]),
	});

	function set(changes) {
		for (const [id, decision] of changes) {
			decisions.set(id, decision);
			const {classList, lastChild} = elements.get(id);
			classList.toggle("discarded", decision === "discard");
			if (write) [...lastChild.children].forEach((button, i) => (button.ariaPressed = decision === ["keep", "discard"][i]));
		}
		const of = decision => [...decisions.values()].filter(each => each === decision).length;
		tally.textContent = `${count(of("keep"))} to keep, ${count(of("discard"))} to discard`;
		bar.hidden = of("keep") + of("discard") === 0;
		if (deleteButton) deleteButton.disabled = !of("discard");
	}

	/** Remembers decisions, [id, decision] each, in the index. */
	async function decide(...changes) {
		if (!write) return;
		const before = changes.map(([id]) => [id, decisions.get(id)]);
		set(changes);
		say({keep: "Kept", discard: "Marked to discard", null: "Undecided"}[changes.at(-1)[1]]);
		try {
			await put("decisions", {decisions: changes.map(([id, decision]) => ({id, decision}))});
		} catch (error) {
			set(before);
			failed(error);
		}
	}

	async function save() {
		const url = URL.createObjectURL(await download("decisions?format=csv"));
		h("a", {href: url, download: "duplicates.csv"}).click();
		setTimeout(() => URL.revokeObjectURL(url), 10_000);
	}

	async function deleteFiles() {
		const ids = (await get("decisions")).decisions.filter(({decision}) => decision === "discard").map(({id}) => id);
		const files = plural(ids.length, "file");
		const answer = await ask(
			`Delete ${files}?`,
			h("p", "The marked files are deleted from the disk. This cannot be undone."),
			h("ul.names", {tabindex: 0}, ids.map(id => h("li", String(id)))),
			h("form.actions", {method: "dialog"}, h("button", {type: "submit", autofocus: true}, "Cancel"), h("button.danger", {type: "submit", value: "delete"}, `Delete ${files}`)),
		);
		if (answer !== "delete") return;
		const result = await remove("images", {ids, files: true});
		changed();
		addEventListener("popstate", () => failed({message: [`${plural(result.removed, "file")} deleted.`, ...result.failed.map(({name, reason}) => `${name}: ${reason}.`)].join(" ")}), {once: true});
		go({view: "library"});
	}

	function drawGroup({images}) {
		const best = images.find(each => each.keep);
		const label = `Group ${++groups}: ${plural(images.length, "image")}`;
		const suggest = () => decide(...images.map(each => [each.id, each === best ? "keep" : "discard"]));
		const copies = images.map(each => {
			const button = (decision, words, symbol) =>
				h("button.small", {tabindex: -1, "aria-label": `${words}: ${each.name}`, onclick: () => decide([each.id, decisions.get(each.id) === decision ? null : decision])}, icon(symbol), words);
			const element = h(
				"li.copy",
				h("div.frame", h("a", {href: imageLink(each.id), tabindex: -1}, image(each.id, each.name, 256))),
				h("p.name", {title: each.id}, each.name),
				h("ul.differences", differences(each, best).map(text => h("li", text)), each === best && h("li.best", "suggested to keep")),
				write && h("div.decide", button("keep", "Keep", "keep"), button("discard", "Discard", "close")),
			);
			element.imageId = each.id; // an attribute would make text of a number
			elements.set(each.id, element);
			return element;
		});
		list.append(h("section.group", h("div.head", h("h2", label), write && h("button.quiet.small", {onclick: suggest}, `Keep ${best.name}, discard the rest`)), h("ul.copies", copies)));
		set(images.map(each => [each.id, each.decision]));
		last.images.push(...images);
	}

	async function fetch() {
		const page = await get("duplicates", {level, cursor, limit: PAGE}, signal);
		page.groups.forEach(drawGroup);
		cursor = page.next;
		end.set(cursor);
		const how = write ? "The image with the most pixels is suggested to be kept. Arrow keys move, K keeps, D discards, U takes back." : "The server lets you look, but not decide.";
		note.textContent = groups ? `${plural(page.total, "group")}. ${how}${mayDelete ? "" : " Nothing is deleted here: export the list instead."}` : "";
		if (groups) focus();
		else list.append(state("No duplicates", `No picture is here twice.${level === "copy" ? " “Similar” also finds stronger edits." : ""}`));
		say(plural(groups, "group"));
	}

	last.images = [];
	last.search = null;
	end.next();
	return {title: "Duplicates"};
}

/** What sets an image apart from the one to keep. */
function differences(each, best) {
	const share = (mine, theirs, what = "") => {
		const percent = theirs ? Math.round((mine / theirs - 1) * 100) : 0;
		return percent ? ` (${percent < 0 ? "−" : "+"}${Math.abs(percent)} %${what})` : "";
	};
	const days = Math.round((Date.parse(each.modified) - Date.parse(best.modified)) / 86_400_000);
	return [
		each.width && `${each.width} × ${each.height}${share(each.width * each.height, best.width * best.height, " pixels")}`,
		each.bytes && bytes(each.bytes) + share(each.bytes, best.bytes),
		each.modified && date(each.modified) + (days ? ` (${plural(Math.abs(days), "day")} ${days < 0 ? "older" : "newer"})` : ""),
	].filter(Boolean);
}
