// The address holds the search (after "#", so that it is not sent to the server), and nothing else does:
// back, reload and sharing work because every view is drawn from the address alone.

const TEXT = ["id", "text", "codes", "rank", "level"];
const JSONS = ["region", "filter", "like", "unlike"];
export const VIEWS = ["library", "search", "image", "duplicates", "add"];

export function read(hash = location.hash) {
	const [, path, query] = /^#\/?([^?]*)\??(.*)$/.exec(hash) ?? [null, "", ""];
	const given = new URLSearchParams(query);
	const route = { view: VIEWS.includes(path) ? path : "library" };
	for (const name of TEXT) if (given.get(name)) route[name] = given.get(name);
	if (given.has("number")) route.id = Number(given.get("number"));
	for (const name of JSONS) {
		try {
			if (given.has(name)) route[name] = JSON.parse(given.get(name));
		} catch {
			// An address that was cut off: the rest of it still says something.
		}
	}
	for (const name of ["like", "unlike"]) if (!Array.isArray(route[name])) delete route[name];
	return route;
}

export function link({ view, ...rest }) {
	const query = new URLSearchParams();
	for (const name of TEXT) if (rest[name]) query.set(name, rest[name]);
	if (typeof rest.id === "number") query.delete("id"), query.set("number", rest.id); // an id may be text or a number
	for (const name of JSONS) {
		const value = rest[name];
		if (value && Object.keys(value).length) query.set(name, JSON.stringify(value));
	}
	return `#/${view === "library" ? "" : view}${query.size ? `?${query}` : ""}`;
}

export function go(route) {
	location.hash = link(route);
}

/** Changes the address of what is shown, without showing it again. */
export function rename(route) {
	history.replaceState(history.state, "", link(route));
}

// Images given as "more like" and "less like" are an id, or an id and a part of the image.
export const itemId = (item) => (typeof item === "object" ? item.id : item);
export const sameItem = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/** The search `route` with one more image that the hits should be like, or unlike. Words cannot be mixed with images. */
export function withItem(route, kind, item) {
	const other = kind === "like" ? "unlike" : "like";
	const without = (items = []) => items.filter((each) => !sameItem(each, item));
	return { ...route, view: "search", text: undefined, [other]: without(route[other]), [kind]: [...without(route[kind]), item] };
}
