// The start: all images, or those that match a filter.

import {h, plural, say, state} from "./dom.js";
import {filterChips, filterForm} from "./filters.js";
import {Grid, Listing} from "./grid.js";
import {go, link} from "./route.js";
import {last, READING, service} from "./shared.js";

const listings = new Map(); // by address, so that "back" finds them as they were

export const forget = () => listings.clear();

export function showLibrary(main, {filter}, {back, failed, signal}) {
	const address = link({view: "library", filter});
	const listing = (back && listings.get(address)) || new Listing(filter);
	if (listings.size > 5) forget();
	listings.set(address, listing);
	last.images = listing.images;
	last.search = null;
	const title = "Library";
	if (!service.info.images) {
		main.append(emptyIndex());
		return {title};
	}
	const change = filter => go({view: "library", filter});
	const heading = h("h1.count", "…");
	const grid = new Grid(listing, failed, signal);
	main.append(h("section.bar", heading, h("div.chips", filterChips(filter, change)), filterForm(filter, change)), grid.element);
	const draw = () => {
		heading.textContent = plural(listing.total, "image");
		grid.measure();
	};
	if (listing.total) draw(); // at once, so that the page can be scrolled to where it was
	else
		listing
			.reach(0, draw)
			.then(() => {
				say(heading.textContent);
				if (!listing.total) grid.element.append(state("Nothing found", "No image matches this filter.", h("a.button", {href: "#/"}, "Show all images")));
			})
			.catch(error => failed(error, grid.element));
	return {title};
}

function emptyIndex() {
	return service.info.access.write
		? state("No pictures yet", "Add some: drop files or a folder here, or choose them.", h("a.button.primary", {href: "#/add"}, "Add pictures"))
		: state("No pictures yet", READING);
}
