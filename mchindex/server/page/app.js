// Starts the page, shows the view that the address names, and takes pictures.

import {addLater, dropped, showAdd} from "./add.js";
import {get, Gone, hooks, Problem} from "./api.js";
import {$, ask, h, say, state} from "./dom.js";
import {showDuplicates} from "./duplicates.js";
import {forget as forgetLibrary, showLibrary} from "./library.js";
import {showImage} from "./one.js";
import {go, read} from "./route.js";
import {forget as forgetSearches, searchFile, showSearch} from "./search.js";
import {isCommand, service} from "./shared.js";
import {setUpWords} from "./words.js";

const AGAIN = 3000; // milliseconds between attempts to reach it
const views = {library: showLibrary, search: showSearch, image: showImage, duplicates: showDuplicates, add: showAdd};
const main = $("#main");
let shown; // the view on the screen
let leaving; // tells it to stop

// Showing a view. Entries of the history are numbered, to know "back" from a new view.

let entry = 0; // the one on the screen
let entries = 0;
let scrolled = 0; // as it happens: when the address has changed, it is too late
const scrolls = new Map(); // by entry
addEventListener("scroll", () => (scrolled = scrollY), {passive: true});

function show() {
	const route = read();
	scrolls.set(entry, scrolled);
	const back = scrolls.has(history.state?.entry);
	if (!back) history.replaceState({entry: ++entries}, "");
	entry = history.state.entry;
	const focused = document.activeElement.id;
	const first = !shown;
	leaving?.abort();
	leaving = new AbortController();
	main.replaceChildren();
	if (!trying) banner();
	if (!service.info) return;
	const {view, text, id, codes, like} = route;
	if ((view === "search" && !text && id === undefined && !codes && !like) || (view === "image" && id === undefined)) return go({view: "library"});
	shown = views[view](main, route, {back, failed, searchWith, changed, signal: leaving.signal});
	document.title = `${shown.title} · Image search`;
	if (focused !== "words" || back || view === "search") $("#words").value = text ?? "";
	for (const anchor of document.querySelectorAll("nav a")) anchor.ariaCurrent = anchor.dataset.view === view ? "page" : null;
	// A control that is drawn again keeps the focus; if what had it is gone, the pictures get it.
	const again = focused && document.getElementById(focused);
	if (again || (!first && document.activeElement === document.body)) (again || main).focus({preventScroll: true});
	scrollTo(0, back ? scrolls.get(entry) : 0);
}

/** Images were added or removed. */
async function changed() {
	forgetLibrary();
	forgetSearches();
	service.info = await get("info");
}

// What can go wrong.

function banner(text, ...actions) {
	$("#banner").hidden = !text;
	$("#banner").replaceChildren(h("p", text), ...actions);
}

/** Says what went wrong: in `place`, if nothing else is shown there, or else above the page. */
function failed(error, place) {
	if (error instanceof Gone || error.name === "AbortError") return; // the banner says so, or the view was left
	const ours = error instanceof Error && !(error instanceof Problem);
	if (ours) console.error(error);
	const text = ours ? "Something went wrong in this page. Reload it." : error.message;
	if (place) place.replaceChildren(state("That did not work", text, h("a.button", {href: "#/"}, "Show the library")));
	else banner(text, h("button", {onclick: () => banner()}, "Close"));
}

async function start() {
	try {
		service.info = await get("info");
		if (!service.info.words) {
			$("#words").placeholder = "Words cannot be searched here: drop a picture";
			$("#words").disabled = true;
		}
		show();
	} catch (error) {
		failed(error, main);
	}
}

let trying = null; // a timer, while the service is gone
function tryAgain() {
	clearTimeout(trying);
	trying = setTimeout(tryAgain, AGAIN);
	start();
}
hooks.gone = () => {
	if (trying) return;
	banner("The server does not answer. It may have been stopped.", h("button", {onclick: tryAgain}, "Try again"));
	trying = setTimeout(tryAgain, AGAIN);
};
hooks.back = () => {
	if (!trying) return;
	clearTimeout(trying);
	trying = null;
	banner();
};

hooks.askKey = async refused => {
	const input = h("input", {type: "password", id: "key", autocomplete: "current-password", autofocus: true});
	const form = h("form", {method: "dialog"}, h("label", {for: "key"}, "Key"), input, h("p.actions", h("button.primary", {type: "submit"}, "Continue")));
	do {
		await ask(refused ? "This key was not accepted" : "This server asks for a key", h("p", refused ? "Check it and type it again." : "Whoever runs it has one. It is kept until you close this tab."), form);
		refused ||= input.value !== "";
	} while (!/^[\x21-\x7e]+$/.test(input.value)); // what a header can hold
	return input.value;
};

// Searching with a picture: chosen, dropped or pasted.

async function searchWith(file, options) {
	banner();
	document.body.classList.add("waiting");
	say("Searching");
	try {
		await searchFile(file, options);
	} catch (error) {
		failed(error);
	} finally {
		document.body.classList.remove("waiting");
	}
}

$("#choose").addEventListener("click", () => $("#file").click());
$("#file").addEventListener("change", ({target}) => {
	if (target.files.length) searchWith(target.files[0]);
	target.value = "";
});
addEventListener("paste", e => {
	if (e.clipboardData.files.length) searchWith(e.clipboardData.files[0]);
});

const hasFiles = e => e.dataTransfer.types.includes("Files");
addEventListener("dragover", e => {
	if (!hasFiles(e)) return;
	e.preventDefault();
	$("#drop p").textContent = shown?.take ? "Drop to add" : "Drop a picture to search with it";
	$("#drop").hidden = false;
});
addEventListener("dragleave", e => ($("#drop").hidden ||= !e.relatedTarget));
addEventListener("drop", async e => {
	if (!hasFiles(e)) return;
	e.preventDefault();
	$("#drop").hidden = true;
	try {
		const files = await dropped(e.dataTransfer);
		if (shown?.take) shown.take(files);
		else if (files.length === 1) searchWith(files[0][0]);
		else if (files.length) {
			addLater(files); // several pictures are no query
			go({view: "add"});
		}
	} catch (error) {
		failed(error);
	}
});

// Help, and keys that work everywhere.

const KEYS = {
	"/": "go to the search field",
	"Arrow keys": "move between pictures",
	"+ − S": "on a hit: more like it, less like it, similar images",
	B: "on a hit: choose a part; arrow keys move it, with Shift they resize it, Enter searches",
	"K D U": "on a duplicate: keep, discard, take back",
};
function help() {
	ask(
		"How to search",
		h("p", "Drop a picture on this page, paste one, or choose one. Or type what it should show: “dog”, “dog, sofa” for both, “dog, -person” for one without the other."),
		h("p", "Drag a box on any picture to search with that part."),
		h("h3", "Keyboard"),
		h("dl", Object.entries(KEYS).map(([key, does]) => h("div", h("dt", key), h("dd", does)))),
		h("p.hint", h("a", {href: "docs"}, "For programmers")),
		h("form.actions", {method: "dialog"}, h("button.primary", {type: "submit", autofocus: true}, "Close")),
	);
}
$("#help").addEventListener("click", help);
addEventListener("keydown", e => {
	if (isCommand(e) || e.target.closest?.("input, select, dialog")) return;
	if (e.key === "/") $("#words").select();
	else if (e.key === "?") help();
	else return;
	e.preventDefault();
});
$("#skip").addEventListener("click", e => {
	e.preventDefault(); // "#main" would be taken for a view
	main.focus();
});

history.scrollRestoration = "manual";
addEventListener("popstate", show);
setUpWords();
start();
