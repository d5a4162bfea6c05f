// Starts the page, shows the view that the address names, and takes pictures that are dropped, pasted or chosen.

import { addLater, dropped, showAdd } from "./add.js";
import { get, Gone, hooks, Problem } from "./api.js";
import { $, ask, h, say, state } from "./dom.js";
import { showDuplicates } from "./duplicates.js";
import { forget as forgetLibrary, showLibrary } from "./library.js";
import { showImage } from "./one.js";
import { go, read } from "./route.js";
import { forget as forgetSearches, searchFile, showSearch } from "./search.js";
import { service } from "./shared.js";
import { setUpWords } from "./words.js";

const AGAIN = 3000; // milliseconds between attempts to reach a service that is gone
const views = { library: showLibrary, search: showSearch, image: showImage, duplicates: showDuplicates, add: showAdd };
const main = $("#main");
let shown = null; // the view on the screen
let entry = 0; // number of the history entry on the screen
let entries = 0;
const scrolls = new Map(); // how far each entry was scrolled

// Showing a view.

function show() {
	const route = read();
	scrolls.set(entry, lastScroll);
	const back = history.state?.entry !== undefined && history.state.entry !== entry && scrolls.has(history.state.entry);
	if (!back) history.replaceState({ entry: ++entries }, "");
	entry = history.state.entry;
	const focused = document.activeElement?.id;
	shown?.stop();
	main.replaceChildren();
	main.className = route.view;
	$("#drop").hidden = true;
	if (!service.info) return;
	if (route.view === "search" && !route.text && route.id === undefined && !route.codes && !route.like?.length) return go({ view: "library" });
	if (route.view === "image" && route.id === undefined) return go({ view: "library" });
	shown = views[route.view](main, route, { back, failed, searchWith, changed });
	document.title = `${shown.title} · Image search`;
	if (document.activeElement?.id !== "words") $("#words").value = route.text ?? "";
	for (const anchor of document.querySelectorAll("nav a")) {
		if (anchor.dataset.view === route.view) anchor.setAttribute("aria-current", "page");
		else anchor.removeAttribute("aria-current");
	}
	// A control that is drawn again keeps the focus; if what had it is gone, the pictures get it.
	const again = focused && document.getElementById(focused);
	if (again) again.focus({ preventScroll: true });
	else if (document.activeElement === document.body) main.focus({ preventScroll: true });
	scrollTo(0, back ? scrolls.get(entry) : 0);
	if (back) requestAnimationFrame(() => scrollTo(0, scrolls.get(entry)));
}

// "scroll" is remembered as it happens: when the address changes, it is already that of the next view.
let lastScroll = 0;
addEventListener("scroll", () => (lastScroll = scrollY), { passive: true });

function changed() {
	forgetLibrary();
	forgetSearches();
}

// What can go wrong.

/** Says what went wrong: in `place`, if nothing else is shown there, or else above the page. */
function failed(error, place) {
	if (error instanceof Gone) return; // the banner says so
	if (!(error instanceof Problem)) console.error(error);
	const text = error instanceof Problem ? error.message : "Something went wrong in this page. Reload it.";
	if (place) place.replaceChildren(state(error.title ?? "That did not work", text, h("a.button", { href: "#/" }, "Show the library")));
	else banner(text, h("button", { onclick: () => banner() }, "Close"));
	say(text);
}

function banner(text, ...actions) {
	const element = $("#banner");
	element.hidden = !text;
	element.replaceChildren(h("p", text ?? ""), ...actions);
}

let isGone = false;
let trying;
hooks.gone = () => {
	if (isGone) return;
	isGone = true;
	banner("The server does not answer. It may have been stopped.", h("button", { onclick: tryAgain }, "Try again"));
	trying = setTimeout(tryAgain, AGAIN);
};
hooks.back = () => {
	if (!isGone) return;
	isGone = false;
	clearTimeout(trying);
	banner();
};
async function tryAgain() {
	clearTimeout(trying);
	try {
		service.info = await get("info");
		show();
	} catch (error) {
		if (error instanceof Gone) trying = setTimeout(tryAgain, AGAIN);
		else failed(error, main);
	}
}

hooks.askKey = async (refused) => {
	for (;;) {
		const input = h("input", { type: "password", id: "key", autocomplete: "current-password", autofocus: true });
		const form = h("form", { method: "dialog" }, h("label", { for: "key" }, "Key"), input, h("p.actions", h("button.primary", { type: "submit" }, "Continue")));
		await ask(h("h2", refused ? "This key was not accepted" : "This server asks for a key"), h("p", refused ? "Check it and type it again." : "Whoever runs the server has it. It is kept until you close this tab."), form);
		if (/^[\x21-\x7e]+$/.test(input.value)) return input.value;
		refused = input.value !== ""; // a key is printable ASCII without spaces
	}
};

// Searching with a picture: chosen, dropped or pasted.

async function searchWith(file, options) {
	banner();
	main.setAttribute("aria-busy", "true");
	document.body.classList.add("waiting");
	say("Searching");
	try {
		await searchFile(file, options);
	} catch (error) {
		if (error instanceof Problem) banner(`${file.name ?? "The picture"}: ${error.message}`, h("button", { onclick: () => banner() }, "Close"));
		else failed(error);
	} finally {
		main.removeAttribute("aria-busy");
		document.body.classList.remove("waiting");
	}
}

$("#choose").addEventListener("click", () => $("#file").click());
$("#file").addEventListener("change", ({ target }) => {
	const [file] = target.files;
	target.value = "";
	if (file) searchWith(file);
});

addEventListener("paste", (event) => {
	const file = [...(event.clipboardData?.files ?? [])][0];
	if (!file) return;
	event.preventDefault();
	searchWith(file);
});

const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
addEventListener("dragover", (event) => {
	if (!hasFiles(event)) return;
	event.preventDefault();
	$("#drop p").textContent = shown?.take ? "Drop to add" : "Drop a picture to search with it";
	$("#drop").hidden = false;
});
addEventListener("dragleave", (event) => {
	if (!event.relatedTarget) $("#drop").hidden = true;
});
addEventListener("drop", async (event) => {
	if (!hasFiles(event)) return;
	event.preventDefault();
	$("#drop").hidden = true;
	try {
		const files = await dropped(event.dataTransfer);
		if (shown?.take) shown.take(files);
		else if (files.length === 1) searchWith(files[0][0]);
		else if (files.length) {
			addLater(files); // several pictures are no query
			go({ view: "add" });
		}
	} catch (error) {
		failed(error);
	}
});

// Keys that work everywhere.

const KEYS = [
	["/", "go to the search field"],
	["Arrow keys", "move between pictures; in one image, to the next"],
	["Enter", "open the picture"],
	["+ and −", "on a hit: more or less like this"],
	["B", "on a hit: choose a part; then arrow keys move it, Shift resizes it, Enter searches"],
	["S", "on a hit: find similar"],
	["K, D, U", "in duplicates: keep, discard, take back"],
];
function help() {
	const { info } = service;
	ask(
		h("h2", "How to search"),
		h("p", "Drop a picture on this page, paste one, or choose one. Or type what it should show: “dog”, “dog, sofa” for both, “dog, -person” for one without the other."),
		h("p", "Drag a box on any picture to search with that part of it."),
		h("h3", "Keyboard"),
		h("dl.keys", KEYS.map(([key, does]) => h("div", h("dt", key), h("dd", does)))),
		info ? h("p.hint", `mchindex ${info.version}, ${info.images.toLocaleString("en")} images. `, h("a", { href: "docs" }, "For programmers")) : null,
		h("form.actions", { method: "dialog" }, h("button.primary", { type: "submit", autofocus: true }, "Close")),
	);
}
$("#help").addEventListener("click", help);
addEventListener("keydown", (event) => {
	if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest?.("input, select, textarea, dialog")) return;
	if (event.key === "/") $("#words").select();
	else if (event.key === "?") help();
	else return;
	event.preventDefault();
});
$("#skip").addEventListener("click", (event) => {
	event.preventDefault(); // "#main" would be taken for a view
	main.focus();
});

history.scrollRestoration = "manual";
addEventListener("popstate", show);
setUpWords();
get("info").then(
	(info) => {
		service.info = info;
		if (!info.words) {
			$("#words").placeholder = "This library cannot be searched by words";
			$("#words").disabled = true;
		}
		show();
	},
	(error) => failed(error, main),
);
