// The address holds the search, after "#". Every view is drawn from it alone, so back, reload and sharing work.

const VIEWS = ["library", "search", "image", "duplicates", "add"];

// Text is written as it is, unless it could be taken for JSON: an id may be text or a number.
function parsed(text) {
	try {
		return JSON.parse(text);
	} catch {
		return text;
	}
}

export function read() {
	const [, view, query] = /^#\/?([^?]*)\??(.*)$/.exec(location.hash) ?? [];
	const route = {view: VIEWS.includes(view) ? view : "library"};
	for (const [name, value] of new URLSearchParams(query)) route[name] = parsed(value);
	for (const name of ["like", "unlike"]) if (!Array.isArray(route[name])) delete route[name];
	return route;
}

export function link({view, ...rest}) {
	const query = new URLSearchParams();
	for (const [name, value] of Object.entries(rest)) {
		const text = typeof value === "string" && parsed(value) === value ? value : JSON.stringify(value);
		if (![undefined, "", "{}", "[]"].includes(text)) query.set(name, text);
	}
	return `#/${view === "library" ? "" : view}${query.size ? `?${query}` : ""}`;
}

export const imageLink = id => link({view: "image", id});
export const go = route => (location.hash = link(route));

// Images in `like` and `unlike` are an id, or an id and a part of the image.
export const itemId = item => item?.id ?? item;
export const without = (items = [], item) => items.filter(each => JSON.stringify(each) !== JSON.stringify(item));

/** The search `route` with one more image in `kind`: "like" or "unlike". Words cannot be mixed with images. */
export function withItem(route, kind, item) {
	const other = kind === "like" ? "unlike" : "like";
	return {...route, view: "search", text: undefined, [other]: without(route[other], item), [kind]: [...without(route[kind], item), item]};
}
