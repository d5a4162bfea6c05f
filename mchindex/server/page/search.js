// A search: what was asked, how it is ordered and filtered, and the hits.

import { get, image, post, upload } from "./api.js";
import { isWhole, outline, PartChooser, pixels, shares } from "./box.js";
import { count, h, icon, milliseconds, plural, say, state } from "./dom.js";
import { filterChips, filterForm } from "./filters.js";
import { go, itemId, link, sameItem, withItem } from "./route.js";
import { chip, choice, last, more, nameOf, RANKS, roving, service } from "./shared.js";
import { keep, kept } from "./uploads.js";

const PAGE = 24; // hits per request
const HEIGHT = 190; // pixels of a row of hits, about
const answers = new Map(); // by address: what was found, so that "back" shows it at once

export function forget() {
	answers.clear();
}

/** The body of a request for some hits of a search. */
function request({ text, id, codes, region, rank, filter, like = [], unlike = [] }, offset) {
	const body = { k: PAGE, offset, rank, filter, explain: true };
	const base = id === undefined ? { codes } : { id, region }; // codes are those of a part already
	if (text) return { ...body, text };
	if (!like.length && !unlike.length) return { ...body, ...base };
	return { ...body, like: codes || id !== undefined ? [base, ...like] : like, unlike };
}

/** Searches with a picture that is not in the index, or the part `box` of it, and goes to its hits. */
export async function searchFile(file, { box, region, rank, filter } = {}) {
	const form = new FormData();
	form.append("request", JSON.stringify({ ...request({ rank, filter }, 0), region }));
	form.append("file", file, file.name ?? "picture");
	const answer = await upload("search", form);
	const route = { view: "search", codes: answer.query.codes, region: box, rank, filter };
	keep(route.codes, file);
	answers.set(link(route), { hits: answer.hits, answer });
	go(route);
}

export function showSearch(main, route, { back, failed, searchWith }) {
	last.search = route;
	const address = link(route);
	const stop = new AbortController();
	const known = answers.get(address);
	// An answer that has just arrived is shown once; later it is only used by "back".
	const found = known && (back || !known.shown) ? known : { hits: [], answer: null };
	found.shown = true;
	answers.delete(address);
	answers.set(address, found);
	if (answers.size > 20) answers.delete(answers.keys().next().value);

	const change = (changes) => go({ ...route, ...changes });
	const add = (kind, item) => go(withItem(route, kind, item));
	const visited = h("p.visited", { id: "visited" });
	const list = h("ul.hits", { "aria-label": "Images found, best first" });
	const below = h("div");
	const end = more(() => fetch());
	const rank = route.rank ?? service.info.rank_modes[0]; // the first is the default
	const ranks = service.info.rank_modes.map((mode) => [mode, ...(RANKS[mode] ?? [mode])]);
	main.append(
		h("section.query", { "aria-label": "What was asked" },
			asked(route, add, searchWith),
			h("div.terms",
				h("h1", title(route)),
				chips(route, change),
				h("div.controls", route.text ? null : choice("rank", "Order", ranks, rank, (value) => change({ rank: value })), filterForm(route.filter, (filter) => change({ filter }))),
				visited,
			),
		),
		list,
		below,
		end.element,
	);

	const byElement = new Map();
	const focus = roving(list, ".hit", {
		"+": (item) => add("like", byElement.get(item).id),
		"-": (item) => route.text || add("unlike", byElement.get(item).id),
		s: (item) => go({ view: "search", id: byElement.get(item).id }),
		b: (item) => byElement.get(item).chooser.begin(),
	});

	function append(hits) {
		for (const hit of hits) {
			const [element, chooser] = hitElement(hit, add, !route.text);
			byElement.set(element, { id: hit.id, chooser });
			list.append(element);
		}
		focus.refresh();
		last.images = found.hits;
	}

	function tell() {
		const { answer, hits } = found;
		visited.textContent = whatItTook(answer);
		end.set(answer.more);
		if (hits.length) return;
		const tips = route.text ? ["Try another word. While you type, words that can be searched are suggested."] : ["Try a larger part, or another picture."];
		if (route.filter && Object.keys(route.filter).length) tips.unshift("No image that matches the filter was found. Remove the filter to search all images.");
		below.replaceChildren(state("Nothing found", tips));
	}

	let busy = false;
	async function fetch() {
		if (busy) return;
		busy = true;
		list.setAttribute("aria-busy", "true");
		try {
			const answer = await post("search", request(route, found.hits.length), stop.signal);
			const seen = new Set(found.hits.map((hit) => hit.id)); // images may have been added meanwhile
			const hits = answer.hits.filter((hit) => !seen.has(hit.id));
			found.hits.push(...hits);
			found.answer = { ...answer, more: answer.more && hits.length > 0 };
			append(hits);
			tell();
			say(found.hits.length ? `${plural(found.hits.length, "image")} shown` : "Nothing found");
		} catch (error) {
			if (error.name === "AbortError") return;
			answers.delete(address);
			end.set(false);
			if (found.hits.length) failed(error);
			else failed(error, below);
		} finally {
			busy = false;
			list.removeAttribute("aria-busy");
		}
	}

	if (found.answer) {
		append(found.hits);
		tell();
		say(`${plural(found.hits.length, "image")} shown`);
	} else {
		visited.textContent = "Searching…";
		fetch();
	}
	return {
		title: title(route),
		stop: () => {
			stop.abort();
			end.stop();
		},
	};
}

function title({ text, id, codes, region, like }) {
	if (text) return `“${text}”`;
	const part = region ? "a part of " : "";
	if (id !== undefined) return `Like ${part}${nameOf(id)}`;
	if (codes) return `Like ${part}your picture`;
	return like?.length === 1 ? `Like ${nameOf(itemId(like[0]))}` : "Like these pictures";
}

/** What the search did, in words. */
function whatItTook({ visited, took }) {
	const time = milliseconds(took.total_ms);
	const buckets = visited.buckets ? `, in ${plural(visited.buckets, "bucket")} (groups of images with the same code)` : "";
	const cut = visited.exact ? "" : " The search was cut short, so a better match may exist.";
	return `Looked at ${count(visited.candidates)} of ${plural(visited.images, "image")}${buckets}. Took ${time}.${cut}`;
}

/** The picture that was searched with; a part of it can be chosen. */
function asked({ id, codes, region, rank, filter }, add, searchWith) {
	const known = id !== undefined;
	if (!known && !codes) return null;
	const file = known ? null : kept(codes);
	if (!known && !file) return h("div.asked.unknown", { title: "The picture itself was not kept" }, icon("picture"));
	const frame = h("div.frame");
	const show = (box) => box && frame.append(outline(box));
	const choose = h("button.quiet.small", { id: "choose-part", hidden: true }, icon("part"), "Choose a part");
	const ready = (actions, box) => {
		const chooser = new PartChooser(frame, actions);
		chooser.opener = choose;
		choose.addEventListener("click", () => chooser.begin(box));
		choose.hidden = false;
	};
	if (known) {
		frame.append(image(id, `The picture searched with: ${nameOf(id)}`, 256));
		// Regions that have a name have it for all images; other boxes are pixels, and need the size.
		show(service.info.regions.find(({ name }) => name === region)?.box);
		get("image", { id }).then((record) => {
			const box = Array.isArray(region) ? shares(region, record) : undefined;
			show(box);
			ready(partActions(record, add, { rank, filter }), box);
		}, () => {});
	} else {
		const img = h("img", { alt: "The picture searched with", draggable: "false" });
		const url = URL.createObjectURL(file);
		img.addEventListener("error", () => frame.replaceChildren(icon("picture"))); // such as HEIC
		img.addEventListener("load", () => {
			URL.revokeObjectURL(url);
			show(region);
			const size = { width: img.naturalWidth, height: img.naturalHeight };
			ready([["Search with this part", (box) => searchWith(file, { box, region: pixels(box, size), rank, filter })]], region);
		});
		img.src = url;
		frame.append(img);
	}
	return h("div.asked", h("div.holder", frame), choose);
}

/** What can be done with a part of an image in the index. */
export function partActions({ id, width, height }, add, rest = {}) {
	if (!width || !height) return [];
	const part = (box) => ({ id, region: pixels(box, { width, height }) });
	const search = ["Search with this part", (box) => go({ view: "search", ...rest, ...part(box) })];
	return add ? [search, ["More like this part", (box) => add("like", part(box))], ["Less", (box) => add("unlike", part(box))]] : [search];
}

function chips(route, change) {
	const items = (kind, words) =>
		(route[kind] ?? []).map((item) => {
			const label = `${words} ${item.region ? "a part of " : ""}${nameOf(itemId(item))}`;
			return chip(label, () => change({ [kind]: route[kind].filter((each) => !sameItem(each, item)) }), image(itemId(item), "", 32), kind);
		});
	const all = [...items("like", "more like"), ...items("unlike", "less like"), ...filterChips(route.filter, (filter) => change({ filter }))];
	return all.length ? h("div.chips", { role: "group", "aria-label": "Narrowed by" }, all) : null;
}

/** A hit, and what chooses a part of it. */
export function hitElement(hit, add, mayUnlike = true) {
	const shape = hit.width && hit.height ? Math.min(3, Math.max(0.4, hit.width / hit.height)) : 1;
	const box = hit.box && hit.width ? shares(hit.box, hit) : null;
	const frame = h("div.frame", h("a", { href: link({ view: "image", id: hit.id }), tabindex: "-1" }, image(hit.id, hit.name, HEIGHT * Math.max(1, shape))), isWhole(box) ? null : outline(box));
	frame.style.aspectRatio = shape;
	const chooser = new PartChooser(frame, partActions(hit, mayUnlike ? add : null));
	const button = (kind, words, symbol) => h("button", { tabindex: "-1", title: words, "aria-label": `${words}: ${hit.name}`, onclick: () => add(kind, hit.id) }, icon(symbol));
	const tools = h("div.tools", button("like", "More like this", "plus"), mayUnlike ? button("unlike", "Less like this", "minus") : null);
	const element = h("li.hit", frame, tools, h("p.why", hit.why || "\xa0"), h("p.name", { title: hit.id }, hit.name));
	element.style.setProperty("--width", `${Math.round(HEIGHT * shape)}px`);
	element.style.setProperty("--grow", shape);
	return [element, chooser];
}
