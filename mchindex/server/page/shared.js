// What several views need: what the service can do, the last search, and the list that was last looked at.

import { h, icon } from "./dom.js";

export const service = { info: null };
export const last = { search: null, images: [] };

export const RANKS = {
	best: ["Best match", "First what looks most like it, then what shows the same things."],
	fine: ["Same picture", "Looks for the same picture, its copies and its parts."],
	code: ["Code order", "Orders by the short codes alone: the fewer bits differ, the earlier."],
};

export const nameOf = (id) => String(id).split("/").pop() || String(id);

/** A row of choices of which one is taken. `choices` are [value, label, title]. */
export function choice(name, label, choices, value, changed) {
	return h("fieldset.choice",
		h("legend.hidden", label),
		choices.map(([each, text, title]) =>
			h("label", { title }, h("input", { type: "radio", name, id: `${name}-${each}`, value: each, checked: each === value, onchange: () => changed(each) }), h("span", text)),
		),
	);
}

/** A removable part of a search. */
export function chip(label, removed, picture, kind = "") {
	return h(
		"span",
		{ class: `chip ${kind}` },
		picture,
		h("span.text", label),
		h("button.quiet", { "aria-label": `Remove: ${label}`, onclick: removed }, icon("close")),
	);
}

/**
 * One stop for Tab in a list of pictures, arrow keys within it. `keys` are functions of an item by the key that
 * calls them. Buttons of the item that has the focus can be reached with Tab.
 */
export function roving(list, selector, keys = {}) {
	const items = () => [...list.querySelectorAll(selector)];
	const main = (item) => (item.matches("a, button, [tabindex]") ? item : item.querySelector("a"));
	const activate = (item) => {
		for (const each of items()) {
			for (const control of [main(each), ...each.querySelectorAll("button")]) control.tabIndex = each === item ? 0 : -1;
		}
	};
	list.addEventListener("focusin", (event) => {
		const item = event.target.closest(selector);
		if (item && main(item).tabIndex !== 0) activate(item);
	});
	list.addEventListener("keydown", (event) => {
		const item = event.target.closest(selector);
		if (!item || event.ctrlKey || event.altKey || event.metaKey || event.target.closest(".chosen, .partbar")) return;
		const all = items();
		const at = all.indexOf(item);
		const to = { ArrowLeft: all[at - 1], ArrowRight: all[at + 1], Home: all[0], End: all.at(-1), ArrowUp: beyond(all, at, -1), ArrowDown: beyond(all, at, 1) };
		const act = keys[event.key.toLowerCase()];
		if (event.key in to) {
			if (to[event.key]) {
				main(to[event.key]).focus();
				to[event.key].scrollIntoView({ block: "nearest" });
			}
		} else if (act) act(item);
		else return;
		event.preventDefault();
		event.stopPropagation();
	});
	return { refresh: () => activate(list.querySelector(selector + ":focus-within") ?? items().find((item) => main(item).tabIndex === 0 && main(item).hasAttribute("tabindex")) ?? items()[0]) };
}

/** The item in the next row, or the row before, that is closest across. */
function beyond(all, at, direction) {
	const from = all[at].getBoundingClientRect();
	let best = null;
	for (let i = at + direction; i >= 0 && i < all.length; i += direction) {
		const area = all[i].getBoundingClientRect();
		if (direction * (area.top - from.top) < 8) continue;
		if (best && Math.abs(area.top - best.area.top) > 8) break;
		const off = Math.abs((area.left + area.right - from.left - from.right) / 2);
		if (!best || off < best.off) best = { item: all[i], area, off };
	}
	return best?.item;
}

/** Calls `fetch` whenever the end of the page comes near; a button does the same. */
export function more(fetch) {
	const button = h("button", { onclick: fetch }, "Show more");
	const element = h("p.more", { hidden: true }, button);
	const seen = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && fetch(), { rootMargin: "600px" });
	return {
		element,
		/** Shows or hides the button; looks again whether it is near. */
		set(there) {
			element.hidden = !there;
			seen.unobserve(element);
			if (there) seen.observe(element);
		},
		stop: () => seen.disconnect(),
	};
}

