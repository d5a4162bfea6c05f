// Filters on the metadata that the images have.

import {h} from "./dom.js";
import {chip, service} from "./shared.js";

function shown(condition) {
	if (typeof condition === "boolean") return condition ? "yes" : "no";
	if (typeof condition !== "object") return condition;
	const {">=": from, "<=": to} = condition;
	if (to === undefined) return `at least ${from}`;
	return from === undefined ? `at most ${to}` : `${from} to ${to}`;
}

/** The filters that are set, as chips. `changed` gets the new filter. */
export function filterChips(filter = {}, changed) {
	return Object.entries(filter).map(([name, condition]) => chip(`${name}: ${shown(condition)}`, () => changed({...filter, [name]: undefined}), "filter"));
}

/** A button that opens a form with one line per kind of metadata, if there is any. */
export function filterForm(filter = {}, changed) {
	const lines = service.info.metadata.map((field, i) => line(field, filter[field.name], `filter-${i}`, condition => changed({...filter, [field.name]: condition})));
	return lines.length ? h("details.filters", h("summary", {id: "filters"}, "Filter"), h("div.panel", lines)) : null;
}

function line({name, kind, values, min, max}, condition, id, set) {
	const label = h("label", {for: id}, name);
	const among = kind === "boolean" ? [true, false] : values;
	if (kind === "number") {
		const {">=": from, "<=": to} = condition ?? {};
		const box = (id, value, placeholder, end) => h("input", {type: "number", step: "any", id, value: value ?? "", placeholder, "aria-label": `${name}, at ${end}`, onchange});
		const onchange = () => {
			const [least, most] = [low, high].map(input => (input.value === "" ? undefined : input.valueAsNumber));
			set(least === undefined && most === undefined ? undefined : {">=": least, "<=": most});
		};
		const low = box(id, from, min, "least");
		const high = box(`${id}-to`, to, max, "most");
		return h("div.line", label, h("span.range", low, "to", high));
	}
	if (!among) return h("div.line", label, h("input", {id, value: condition ?? "", onchange: e => set(e.target.value || undefined)}));
	const select = h("select", {id, onchange: () => set(among[select.value])}, h("option", {value: ""}, "any"), among.map((value, i) => h("option", {value: i}, shown(value))));
	select.value = among.indexOf(condition) < 0 ? "" : among.indexOf(condition);
	return h("div.line", label, select);
}
