// What several views need.

import {$, h, icon} from "./dom.js";

export const service = {}; // `info`: what it can do
export const last = {search: null, images: []}; // what was last looked at

export const RANKS = {
	best: ["Best match", "What looks most like it, then what shows the same things"],
	fine: ["Same picture", "The same picture, its copies and its parts"],
	code: ["Code order", "By the codes alone: the fewer bits differ, the earlier"],
};

export const READING = "Your key only lets you look. Whoever runs the server can add pictures with: mch add photos/";

export const nameOf = id => String(id).split("/").pop();

/** A row of choices of which one is taken. `choices` are [value, label, title]. */
export function choice(name, label, choices, value, changed) {
	const input = each => h("input", {type: "radio", name, id: `${name}-${each}`, value: each, checked: each === value, onchange: () => changed(each)});
	return h("fieldset.choice", h("legend.hidden", label), choices.map(([each, text, title]) => h("label", {title}, input(each), h("span", text))));
}

/** A removable part of a search. */
export function chip(label, removed, kind, picture) {
	return h(`span.chip.${kind}`, picture, h("span.text", label), h("button.quiet", {"aria-label": `Remove: ${label}`, onclick: removed}, icon("close")));
}

/** Whether a key is pressed together with one that makes it a command of the browser. */
export const isCommand = e => e.ctrlKey || e.altKey || e.metaKey;

/**
 * Tab stops once in a list of pictures, at the item that had the focus last; arrow keys move it. `keys` are
 * functions of an item, by key. Call the result when items are added.
 */
export function roving(list, selector, keys = {}) {
	const items = () => [...list.querySelectorAll(selector)];
	let active = null;
	const activate = item => {
		for (const each of [active, item]) each?.querySelectorAll("a, button").forEach(control => (control.tabIndex = each === item ? 0 : -1));
		active = item;
	};
	list.addEventListener("focusin", e => activate(e.target.closest(selector)));
	list.addEventListener("keydown", e => {
		const item = e.target.closest(selector);
		if (!item || isCommand(e) || e.target.closest(".chosen, .partbar")) return;
		const all = items();
		const at = all.indexOf(item);
		const to = {ArrowLeft: all[at - 1], ArrowRight: all[at + 1], Home: all[0], End: all.at(-1), ArrowUp: beyond(all, at, -1), ArrowDown: beyond(all, at, 1)};
		if (e.key in to) $("a", to[e.key] ?? item).focus();
		else if (keys[e.key.toLowerCase()]) keys[e.key.toLowerCase()](item);
		else return;
		e.preventDefault();
	});
	return () => activate(active?.isConnected ? active : items()[0]);
}

/** The item in the next row, or the row before, that is closest across. */
function beyond(all, at, way) {
	const from = all[at].getBoundingClientRect();
	const areas = all.map(item => [item, item.getBoundingClientRect()]).filter(([, {top}]) => way * (top - from.top) > 8);
	const off = ({left, top}) => Math.abs(top - from.top) * 1e5 + Math.abs(left - from.left); // the nearest row first
	return areas.sort(([, a], [, b]) => off(a) - off(b))[0]?.[0];
}

/** Calls `fetch` when the end of the page comes near; a button does the same. `set` says whether there is more. */
export function more(fetch, signal, failed) {
	let busy = false;
	const next = async () => {
		if (busy) return;
		busy = true;
		try {
			await fetch();
		} catch (error) {
			if (!signal.aborted) {
				set(false);
				failed(error);
			}
		}
		busy = false;
	};
	const element = h("p.more", {hidden: true}, h("button", {onclick: next}, "Show more"));
	const seen = new IntersectionObserver(([entry]) => entry.isIntersecting && next(), {rootMargin: "600px"});
	const set = there => {
		element.hidden = !there;
		seen.disconnect();
		if (there) seen.observe(element);
	};
	signal.addEventListener("abort", () => seen.disconnect());
	return {element, set, next};
}
