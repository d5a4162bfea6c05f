// One image: large, with its facts, its parts and codes, and what is most like it.

import { get, image, load, picture, post } from "./api.js";
import { outline, PartChooser, place, shares } from "./box.js";
import { bytes, date, h, icon, plural } from "./dom.js";
import { go, link, withItem } from "./route.js";
import { last, nameOf, roving } from "./shared.js";
import { hitElement, partActions } from "./search.js";

const NEIGHBOURS = 12;

export function showImage(main, route, { failed }) {
	const { id } = route;
	const stop = new AbortController();
	const article = h("article.one");
	main.append(article);
	get("image", { id }, stop.signal)
		.then((record) => {
			draw(article, record);
			return post("search", { id, k: NEIGHBOURS, explain: true }, stop.signal).then((answer) => neighbours(article, id, answer.hits));
		})
		.catch((error) => {
			if (error.name !== "AbortError") failed(error, article);
		});
	const keys = (event) => {
		if (event.defaultPrevented || event.target.closest("input, select, summary, .hits, .chosen") || event.ctrlKey || event.altKey || event.metaKey) return;
		const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
		const other = way && beside(id, way);
		if (!other) return;
		event.preventDefault();
		location.replace(link({ view: "image", id: other.id }));
	};
	addEventListener("keydown", keys);
	return {
		title: nameOf(id),
		stop: () => {
			stop.abort();
			removeEventListener("keydown", keys);
		},
	};
}

/** The image before or after this one, in the list that was last looked at. */
function beside(id, way) {
	const at = last.images.findIndex((image) => image.id === id);
	return at < 0 ? null : (last.images[at + way] ?? null);
}

function draw(article, record) {
	const { id, name, width, height } = record;
	const base = last.search ?? { view: "search" };
	const add = (kind, item) => go(withItem(base, kind, item));

	const img = image(id, name, 512);
	img.addEventListener("load", () => load(img, picture(id)), { once: true }); // the small one is there sooner
	const frame = h("div.frame", img);
	if (width && height) {
		frame.style.aspectRatio = `${width} / ${height}`;
		frame.style.setProperty("--shape", width / height);
	}
	const chooser = new PartChooser(frame, partActions(record, last.search ? add : null));
	const choose = h("button", { id: "choose-part", onclick: () => chooser.begin() }, icon("part"), "Choose a part");
	chooser.opener = choose;

	const step = (way, words, symbol) => {
		const other = beside(id, way);
		return other ? h("a", { class: `step ${symbol}`, href: link({ view: "image", id: other.id }), "aria-label": `${words}: ${other.name}`, title: `${words} (arrow key)`, onclick: (event) => (event.preventDefault(), location.replace(event.currentTarget.href)) }, icon(symbol)) : null;
	};
	const buttons = [
		h("a.button.primary", { href: link({ view: "search", id }) }, "Find similar"),
		h("a.button", { href: link({ view: "search", id, rank: "fine" }) }, "Find copies"),
		choose,
	];
	if (last.search) {
		buttons.push(h("button", { onclick: () => add("like", id) }, icon("plus"), "More like this"), h("button", { onclick: () => add("unlike", id) }, icon("minus"), "Less like this"));
	}
	article.append(
		h("div.stage", step(-1, "Previous image", "left"), h("div.holder", frame), step(1, "Next image", "right")),
		h("div.facts", h("h1", name), h("p.actions", buttons), h("p.hint", "Drag a box on the picture to search with a part of it."), facts(record), parts(record, frame)),
	);
}

function facts(record) {
	const { id, width, height, bytes: size, modified, metadata } = record;
	const lines = [
		["Size", width && height ? `${width} × ${height} pixels` : null],
		["File", size ? bytes(size) : null],
		["Date", modified ? date(modified) : null],
		["Path", id],
		...Object.entries(metadata ?? {}).map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : String(value)]),
	];
	return h("dl", lines.filter(([, value]) => value).map(([name, value]) => h("div", h("dt", name), h("dd", value))));
}

/** The parts that have a code; each is outlined while it is pointed at, and can be searched with. */
function parts({ id, width, height, regions }, frame) {
	if (!regions.length) return null;
	const spot = outline([0, 0, 1, 1]);
	const show = (box) => box && width && frame.append(place(spot, shares(box, { width, height })));
	const hide = () => spot.remove();
	const rows = regions.map(({ box, region, code, images_in_bucket: images }) =>
		h("li", { onmouseenter: () => show(box), onmouseleave: hide }, h("a", { href: link({ view: "search", id, region }), onfocus: () => show(box), onblur: hide }, region), h("span", images > 1 ? `shared with ${plural(images - 1, "other image")}` : "shared with no other"), h("code", code)),
	);
	return h("section", h("h2", "Parts and codes"), h("p.hint", "A code is a short fingerprint of what a part shows. Images that share a code are in one bucket, and a search looks there first. Choose a part to search with it."), h("ul.parts", rows));
}

function neighbours(article, id, hits) {
	if (!hits.length) return;
	const base = { view: "search", id };
	const list = h("ul.hits", { "aria-label": "Most similar images" }, hits.map((hit) => hitElement(hit, (kind, item) => go(withItem(base, kind, item)))[0]));
	roving(list, ".hit").refresh();
	article.append(h("section.near", h("h2", "Most similar"), list));
}
