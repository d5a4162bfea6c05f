// The start: all images, or those that match a filter.

import { h, plural, say, state } from "./dom.js";
import { filterChips, filterForm } from "./filters.js";
import { Grid, Listing } from "./grid.js";
import { go, link } from "./route.js";
import { last, service } from "./shared.js";

const listings = new Map(); // by address, so that "back" finds them as they were

export function forget() {
	listings.clear();
}

export function showLibrary(main, route, { back, failed }) {
	const address = link(route);
	if (!back) listings.delete(address);
	const listing = listings.get(address) ?? new Listing(route.filter);
	if (listings.size > 5) listings.clear();
	listings.set(address, listing);
	const filtered = Object.keys(route.filter ?? {}).length > 0;
	if (!service.info.images && !filtered) {
		main.append(emptyIndex());
		return { title: "Library", stop: () => {} };
	}
	const grid = new Grid(listing, failed);
	const change = (filter) => go({ ...route, filter });
	const heading = h("h1.count", filtered ? "…" : plural(service.info.images, "image"));
	main.append(h("section.bar", heading, h("div.chips", filterChips(route.filter, change)), filterForm(route.filter, change)), grid.element);
	last.images = listing.images;
	last.search = null;
	listing
		.reach(0, () => {})
		.then(() => {
			heading.textContent = plural(listing.total, "image");
			grid.start();
			if (filtered) say(plural(listing.total, "image"));
			if (!listing.total) main.append(state("Nothing found", "No image matches this filter.", h("a.button", { href: "#/" }, "Show all images")));
		})
		.catch((error) => failed(error, grid.element));
	return { title: "Library", stop: () => grid.stop() };
}

function emptyIndex() {
	const { write } = service.info.access;
	return state(
		"No pictures yet",
		write
			? "Add some: drop files or a folder here, or choose them."
			: ["This library is empty, and the server lets you look but not add.", "Whoever runs it can add pictures with: mch add photos/"],
		write ? h("a.button.primary", { href: "#/add" }, "Add pictures") : null,
	);
}
