// Filters on the metadata that the images have.

import { h } from "./dom.js";
import { chip, service } from "./shared.js";

const without = (filter, name) => Object.fromEntries(Object.entries(filter).filter(([each]) => each !== name));

function shown(condition) {
	if (typeof condition === "boolean") return condition ? "yes" : "no";
	if (condition === null || typeof condition !== "object" || Array.isArray(condition)) return [condition].flat().join(" or ");
	const { ">=": from, "<=": to, ...other } = condition;
	if (Object.keys(other).length) return JSON.stringify(condition);
	return from === undefined ? `at most ${to}` : to === undefined ? `at least ${from}` : `${from} to ${to}`;
}

/** The filters that are set, as chips. */
export function filterChips(filter = {}, changed) {
	return Object.entries(filter).map(([name, condition]) => chip(`${name}: ${shown(condition)}`, () => changed(without(filter, name)), null, "filter"));
}

/** A button that opens a form with one line per kind of metadata; null if there is no metadata. */
export function filterForm(filter = {}, changed) {
	const known = service.info?.metadata ?? [];
	if (!known.length) return null;
	const set = (name, condition) => changed(condition === undefined ? without(filter, name) : { ...filter, [name]: condition });
	const lines = known.map((field, i) => h("div.line", ...line(field, filter[field.name], `filter-${i}`, (condition) => set(field.name, condition))));
	const details = h("details.filters", { onkeydown: (event) => event.key === "Escape" && ((details.open = false), details.firstChild.focus()) },
		h("summary", { id: "filters" }, "Filter"),
		h("div.panel", lines),
	);
	return details;
}

function line({ name, kind, values, min, max }, condition, id, set) {
	const label = h("label", { for: id }, name);
	if (kind === "boolean") return [label, select(id, condition, [[true, "yes"], [false, "no"]], set)];
	if (kind === "number") {
		const { ">=": from, "<=": to } = typeof condition === "number" ? { ">=": condition, "<=": condition } : (condition ?? {});
		const box = (end, value, hint) =>
			h("input", { type: "number", step: "any", id: end ? `${id}-${end}` : id, value: value ?? "", placeholder: hint ?? "", "aria-label": `${name}, ${end ? "at most" : "at least"}`, onchange: () => both() });
		const low = box("", from, min);
		const high = box("to", to, max);
		const both = () => {
			const range = {};
			if (low.value !== "") range[">="] = low.valueAsNumber;
			if (high.value !== "") range["<="] = high.valueAsNumber;
			set(Object.keys(range).length ? range : undefined);
		};
		return [label, h("span.range", low, "to", high)];
	}
	if (values?.length) return [label, select(id, condition, values.map((value) => [value, String(value)]), set)];
	const text = h("input", { type: "text", id, value: typeof condition === "string" ? condition : "", placeholder: "exactly", onchange: () => set(text.value === "" ? undefined : text.value) });
	return [label, text];
}

function select(id, condition, values, set) {
	const at = values.findIndex(([value]) => value === condition);
	const element = h("select", { id, onchange: () => set(element.value === "" ? undefined : values[element.value][0]) }, h("option", { value: "" }, "any"), values.map(([, label], i) => h("option", { value: String(i) }, label)));
	element.value = at < 0 ? "" : String(at);
	return element;
}
