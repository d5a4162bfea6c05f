// One image: large, with its facts, its parts and codes, and what is most like it.

import {get, image, load, picture, post} from "./api.js";
import {outline, PartChooser, place, shares} from "./box.js";
import {bytes, date, h, icon, plural} from "./dom.js";
import {go, imageLink, link, withItem} from "./route.js";
import {hitElement, partActions} from "./search.js";
import {isCommand, last, nameOf, roving} from "./shared.js";

const NEIGHBOURS = 12;

export function showImage(main, {id}, {failed, signal}) {
	const article = h("article");
	main.append(article);
	get("image", {id}, signal)
		.then(record => draw(article, record))
		.then(() => post("search", {id, k: NEIGHBOURS, explain: true}, signal))
		.then(({hits}) => hits.length && article.append(neighbours(id, hits)))
		.catch(error => failed(error, article.firstChild ? null : article));
	const step = e => {
		const way = {ArrowLeft: -1, ArrowRight: 1}[e.key];
		if (!way || e.defaultPrevented || isCommand(e) || e.target.closest("input, .hits")) return;
		const other = beside(id, way);
		if (other) location.replace(imageLink(other.id));
	};
	addEventListener("keydown", step, {signal});
	return {title: nameOf(id)};
}

/** The image before or after this one, in the list that was last looked at. */
function beside(id, way) {
	const at = last.images.findIndex(image => image.id === id);
	return at < 0 ? null : last.images[at + way];
}

function draw(article, record) {
	const {id, name, width, height} = record;
	const add = last.search && ((kind, item) => go(withItem(last.search, kind, item)));
	const img = image(id, name, 512);
	img.addEventListener("load", () => load(img, picture(id)), {once: true}); // the small one is there sooner
	const frame = h("div.frame", img);
	if (width && height) {
		frame.style.aspectRatio = width / height;
		frame.style.setProperty("--shape", width / height);
	}
	const actions = partActions(record, last.search?.text ? null : add);
	const choose = h("button", {id: "choose-part", hidden: !actions.length, onclick: () => chooser.begin()}, icon("part"), "Choose a part");
	const chooser = new PartChooser(frame, actions, choose);
	const step = (way, words, symbol) => {
		const other = beside(id, way);
		// Replaces the address, so that "back" leads to the list.
		const replace = e => (e.preventDefault(), location.replace(e.currentTarget.href));
		return other && h(`a.step.${symbol}`, {href: imageLink(other.id), "aria-label": `${words}: ${other.name}`, onclick: replace}, icon(symbol));
	};
	const facts = h(
		"div.facts",
		h("h1", name),
		h(
			"p.actions",
			h("a.button.primary", {href: link({view: "search", id})}, "Find similar"),
			h("a.button", {href: link({view: "search", id, rank: "fine"})}, "Find copies"),
			choose,
			add && h("button", {onclick: () => add("like", id)}, icon("plus"), "More like this"),
			add && !last.search.text && h("button", {onclick: () => add("unlike", id)}, icon("minus"), "Less like this"),
		),
		h("p.hint", "Drag a box on the picture to search with a part of it."),
		about(record),
		parts(record, frame),
	);
	const stage = h("div.stage", step(-1, "Previous image", "left"), h("div.holder", frame), step(1, "Next image", "right"));
	article.append(h("div.one", stage, facts));
}

function about({id, width, height, bytes: size, modified, metadata}) {
	const lines = {
		Size: width && `${width} × ${height} pixels`,
		File: size && bytes(size),
		Date: modified && date(modified),
		Path: String(id),
		...metadata,
	};
	const text = value => (typeof value === "string" ? value : JSON.stringify(value));
	return h("dl", Object.entries(lines).map(([name, value]) => value !== null && h("div", h("dt", name), h("dd", text(value)))));
}

/** The parts that have a code; each is outlined while it is pointed at, and can be searched with. */
function parts({id, width, height, regions}, frame) {
	const spot = outline([0, 0, 1, 1]);
	const hide = () => spot.remove();
	const rows = regions.map(({box, region, code, images_in_bucket: images}) => {
		const show = () => box && frame.append(place(spot, shares(box, {width, height})));
		const others = images > 1 ? plural(images - 1, "other image") : "no other";
		return h("li", {onmouseenter: show, onmouseleave: hide}, h("a", {href: link({view: "search", id, region}), onfocus: show, onblur: hide}, region), h("span", `shared with ${others}`), h("code", code));
	});
	return h("section", h("h2", "Parts and codes"), h("p.hint", "A code is a short fingerprint of what a part shows. Images that share a code are in one bucket, and a search looks there first. Choose a part to search with it."), h("ul.parts", rows));
}

function neighbours(id, hits) {
	const add = (kind, item) => go(withItem({id}, kind, item));
	const list = h("ul.hits", {"aria-label": "Most similar images"}, hits.map(hit => hitElement(hit, add)[0]));
	roving(list, ".hit")();
	return h("section.near", h("h2", "Most similar"), list);
}
