// A search: what was asked, how it is ordered and filtered, and the hits.

import {get, image, post, showBlob} from "./api.js";
import {isWhole, outline, PartChooser, pixels, place, shares} from "./box.js";
import {count, h, icon, plural, say, state} from "./dom.js";
import {filterChips, filterForm} from "./filters.js";
import {go, itemId, imageLink, link, without, withItem} from "./route.js";
import {chip, choice, last, more, nameOf, RANKS, roving, service} from "./shared.js";
import {keep, kept} from "./uploads.js";

const PAGE = 24; // hits per request
const HEIGHT = 190; // pixels of a row of hits, about
const answers = new Map(); // by address: what was found, so that "back" shows it at once

export const forget = () => answers.clear();

/** The body of a request for some hits of a search. */
function request({text, id, codes, region, rank, filter, like = [], unlike = []}, offset) {
	const body = {k: PAGE, offset, rank, filter};
	const base = codes ? {codes} : {id, region}; // codes are those of a part already
	if (text) return {...body, text};
	if (!like.length && !unlike.length) return {...body, ...base};
	return {...body, like: codes || id !== undefined ? [base, ...like] : like, unlike};
}

/** Searches with a picture that is not in the index, or the part `box` of it, and goes to its hits. */
export async function searchFile(file, {box, region, rank, filter} = {}) {
	const form = new FormData();
	form.append("request", JSON.stringify({...request({rank, filter}, 0), region, explain: true}));
	form.append("file", file);
	const answer = await post("search", form);
	const route = {view: "search", codes: answer.query.codes, region: box, rank, filter};
	keep(route.codes, file);
	answers.set(link(route), {hits: answer.hits, answer, fresh: true});
	go(route);
}

export function showSearch(main, route, {back, failed, searchWith, signal}) {
	const address = link(route);
	const known = answers.get(address);
	const found = known && (back || known.fresh) ? known : {hits: []};
	found.fresh = false;
	answers.delete(address);
	answers.set(address, found);
	if (answers.size > 20) answers.delete(answers.keys().next().value);
	last.search = route;
	last.images = found.hits;

	const change = changes => go({...route, ...changes});
	const add = (kind, item) => go(withItem(route, kind, item));
	const visited = h("p.visited", {id: "visited"}, "Searching…");
	const list = h("ul.hits", {"aria-label": "Images found, best first"});
	const below = h("div");
	const end = more(fetch, signal, error => {
		answers.delete(address);
		visited.textContent = "";
		const unknown = {message: `${error.message.split(";")[0]}. Put commas between things. Known words are suggested as you type.`};
		failed(route.text && error.status === 422 ? unknown : error, found.hits.length ? null : below);
	});
	const modes = service.info.rank_modes; // the first is the default
	const controls = [
		!route.text && choice("rank", "Order", modes.map(mode => [mode, ...RANKS[mode]]), route.rank ?? modes[0], rank => change({rank})),
		filterForm(route.filter, filter => change({filter})),
	];
	main.append(
		h("section.query", {"aria-label": "What was asked"}, asked(route, add, searchWith), h("div.terms", h("h1", title(route)), chips(route, change), h("div.controls", controls), visited)),
		list,
		below,
		end.element,
	);

	const hits = new Map(); // by element: [id, chooser]
	const explained = new Map(); // by id: what shows the reason of a hit
	const focus = roving(list, ".hit", {
		"+": item => add("like", hits.get(item)[0]),
		"-": item => route.text || add("unlike", hits.get(item)[0]),
		s: item => go({view: "search", id: hits.get(item)[0]}),
		b: item => hits.get(item)[1].begin(),
	});

	function draw(some) {
		for (const hit of some) {
			const [element, chooser, explain] = hitElement(hit, add, !route.text);
			hits.set(element, [hit.id, chooser]);
			explained.set(hit.id, explain);
			list.append(element);
		}
		focus();
		visited.textContent = whatItTook(found.answer);
		end.set(found.answer.more);
		say(found.hits.length ? `${plural(found.hits.length, "image")} shown` : "Nothing found");
		if (found.hits.length) return;
		const filtered = route.filter && "No image matches the filter. Remove it to search all images.";
		below.append(state("Nothing found", filtered || `Try ${route.text ? "another word" : "a larger part, or another picture"}.`));
	}

	/** Reasons take longer than hits, because pixels are compared. */
	async function explainHits(asked) {
		for (const hit of (await post("search", {...asked, explain: true}, signal)).hits) {
			Object.assign(found.hits.find(({id}) => id === hit.id) ?? {}, hit);
			explained.get(hit.id)?.(hit);
		}
	}

	async function fetch() {
		const asked = request(route, found.hits.length);
		const answer = await post("search", asked, signal);
		const seen = new Set(found.hits.map(hit => hit.id)); // images may have been added meanwhile
		const some = answer.hits.filter(hit => !seen.has(hit.id));
		found.hits.push(...some);
		found.answer = {...answer, more: answer.more && some.length > 0};
		draw(some);
		explainHits(asked).catch(() => {}); // they are hits without a reason, too
	}

	if (found.answer) draw(found.hits);
	else end.next();
	return {title: title(route)};
}

function title({text, id, codes, region, like = []}) {
	if (text) return `“${text}”`;
	const part = region ? "a part of " : "";
	if (codes) return `Like ${part}your picture`;
	if (id !== undefined) return `Like ${part}${nameOf(id)}`;
	return like.length === 1 ? `Like ${nameOf(itemId(like[0]))}` : "Like these pictures";
}

/** What the search did, in words. */
function whatItTook({visited, took: {total_ms: ms}}) {
	const buckets = visited.buckets ? `, in ${plural(visited.buckets, "bucket")} (groups of images with the same code)` : "";
	const cut = visited.exact ? "" : " The search was cut short, so a better match may exist.";
	return `Looked at ${count(visited.candidates)} of ${plural(visited.images, "image")}${buckets}. Took ${count(ms < 10 ? Math.round(ms * 10) / 10 : Math.round(ms))} ms.${cut}`;
}

/** The picture that was searched with; a part of it can be chosen. */
function asked({id, codes, region, rank, filter}, add, searchWith) {
	if (id === undefined && !codes) return null;
	const file = codes && kept(codes);
	if (codes && !file) return h("div.asked.unknown", {title: "The picture itself was not kept"}, icon("picture"));
	const frame = h("div.frame");
	const choose = h("button.quiet.small", {id: "choose-part", hidden: true}, icon("part"), "Choose a part");
	const ready = (actions, box) => {
		if (box) frame.append(outline(box));
		const chooser = new PartChooser(frame, actions, choose);
		choose.addEventListener("click", () => chooser.begin(box));
		choose.hidden = !actions.length;
	};
	if (file) {
		const img = h("img", {
			alt: "The picture searched with",
			onerror: () => frame.replaceChildren(icon("picture")), // such as HEIC
			onload: () => {
				const size = {width: img.naturalWidth, height: img.naturalHeight};
				ready([["Search with this part", box => searchWith(file, {box, region: pixels(box, size), rank, filter})]], region);
			},
		});
		frame.append(img);
		showBlob(img, file);
	} else {
		frame.append(image(id, `The picture searched with: ${nameOf(id)}`, 256));
		// Other regions than those with a name are in pixels, and need the size.
		const named = service.info.regions.find(({name}) => name === region)?.box;
		get("image", {id}).then(record => ready(partActions(record, add, {rank, filter}), named ?? (region && shares(region, record))), () => {});
	}
	return h("div.asked", h("div", frame), choose);
}

/** What can be done with a part of an image in the index. */
export function partActions(image, add, rest = {}) {
	if (!image.width || !image.height) return [];
	const part = box => ({id: image.id, region: pixels(box, image)});
	const search = ["Search with this part", box => go({view: "search", ...rest, ...part(box)})];
	return add ? [search, ["More like this part", box => add("like", part(box))], ["Less", box => add("unlike", part(box))]] : [search];
}

function chips(route, change) {
	const items = (kind, words) =>
		(route[kind] ?? []).map(item => chip(`${words} ${item.region ? "a part of " : ""}${nameOf(itemId(item))}`, () => change({[kind]: without(route[kind], item)}), kind, image(itemId(item), "", 32)));
	return h("div.chips", items("like", "more like"), items("unlike", "less like"), filterChips(route.filter, filter => change({filter})));
}

/** A hit, what chooses a part of it, and what shows why it is a hit. */
export function hitElement(hit, add, mayUnlike = true) {
	const shape = hit.width && hit.height ? Math.min(3, Math.max(0.4, hit.width / hit.height)) : 1;
	const anchor = h("a", {href: imageLink(hit.id), tabindex: -1}, image(hit.id, hit.name, HEIGHT * Math.max(1, shape)));
	const mark = outline([0, 0, 1, 1]);
	const frame = h("div.frame", anchor, mark);
	frame.style.aspectRatio = shape;
	const chooser = new PartChooser(frame, partActions(hit, mayUnlike && add), anchor);
	const button = (kind, words, symbol) => h("button", {tabindex: -1, title: words, "aria-label": `${words}: ${hit.name}`, onclick: () => add(kind, hit.id)}, icon(symbol));
	const tools = h("div.tools", button("like", "More like this", "plus"), mayUnlike && button("unlike", "Less like this", "minus"));
	const why = h("p.why");
	const explain = ({why: text, box}) => {
		why.textContent = text;
		const part = box && hit.width ? shares(box, hit) : [0, 0, 1, 1];
		place(mark, part).hidden = isWhole(part);
	};
	explain(hit);
	const element = h("li.hit", frame, tools, why, h("p.name", {title: hit.id}, hit.name));
	element.style.setProperty("--width", `${Math.round(HEIGHT * shape)}px`);
	element.style.setProperty("--grow", shape);
	return [element, chooser, explain];
}
