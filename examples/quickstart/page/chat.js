// The chat page: a list of bots beside one conversation for each of them.

import { BotClient } from "./client.js";
import { Conversation, asJSON, asMarkdown } from "./conversation.js";
import { ConversationView, drawAvatar } from "./view.js";
import { Scroller } from "./scrolling.js";
import { save } from "./copying.js";
import { store } from "./store.js";
import { explain, troubleWith } from "./words.js";

const $ = (id) => document.getElementById(id);
const wide = matchMedia("(min-width: 46rem)");
const scroller = new Scroller($("scroller"), $("latest"));

let client; // set once there is a key
let bots = [];
let chat; // {conversation, view, place, editing}: the one on show
const chats = new Map(); // by the bot's uid

// ---- The key ----

// takeKeyFromAddress moves a key out of the address, `/#key=...`, before
// anybody reads or bookmarks it.
function takeKeyFromAddress() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const key = fragment.get("key");
  if (key === null) return false;
  store.key = key.trim();
  fragment.delete("key");
  const rest = fragment.toString();
  history.replaceState(null, "", location.pathname + location.search + (rest && "#" + rest));
  return true;
}

function askForKey(problem = "") {
  store.key = "";
  closeDialogs();
  leave();
  $("bots").replaceChildren();
  $("app").hidden = true;
  $("key-view").hidden = false;
  $("key").value = "";
  showKeyProblem(problem);
}

function showKeyProblem(problem) {
  $("key-problem").hidden = !problem;
  $("key-problem").textContent = problem;
  $("key").focus();
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = $("key").value.trim(); // pasted keys often bring white space along
  if (!key) return showKeyProblem("Enter a key.");
  if (!/^[!-~]+$/.test(key)) return showKeyProblem("A key has no spaces and no accented letters.");
  store.key = key;
  start();
});

$("forget-key").addEventListener("click", () => $("forget-dialog").showModal());
$("delete-all").addEventListener("click", () => $("delete-dialog").showModal());

$("forget-now").addEventListener("click", () => {
  if ($("forget-chats").checked) store.deleteConversations();
  forgetChats();
  history.replaceState(null, "", location.pathname + location.search);
  askForKey();
});

$("delete-now").addEventListener("click", () => {
  closeDialogs();
  store.deleteConversations();
  forgetChats();
  showFromAddress();
  announce("All conversations are deleted.");
});

for (const button of document.querySelectorAll("dialog .cancel")) button.addEventListener("click", closeDialogs);

function closeDialogs() {
  document.querySelectorAll("dialog[open]").forEach((dialog) => dialog.close());
}

function forgetChats() {
  chats.forEach(({ conversation }) => conversation.forget());
  chats.clear();
  chat = undefined;
  compose("");
}

// ---- The bots ----

// start lists the bots with the key at hand, or asks for one.
async function start() {
  if (!store.key) return askForKey();
  client = new BotClient(document.baseURI, store.key);
  $("key-view").hidden = true;
  $("app").hidden = false;
  note("Loading the bots…");
  try {
    bots = await client.bots();
  } catch (error) {
    if (error.status === 401) return askForKey("The server did not accept this key.");
    const { title, advice = "" } = explain(error);
    return note(`${title} ${advice}`, "Try again", start);
  }
  drawBots();
  showFromAddress();
}

// refetch lists the bots again, now and then and when there is reason to think
// that they have changed. If it does not work, the list at hand has to do.
async function refetch() {
  if ($("app").hidden || document.hidden) return;
  const fresh = await client.bots().catch(() => bots);
  if ($("app").hidden || JSON.stringify(fresh) === JSON.stringify(bots)) return;
  bots = fresh;
  for (const bot of bots) chats.get(bot.uid)?.conversation.meet(bot);
  drawBots();
  const named = namedBot();
  if (!chat || (named && named.uid !== chat.conversation.bot.uid)) showFromAddress();
  else showBot(chat.conversation.bot);
}

function drawBots() {
  note(bots.length === 0 ? "No bot is published here yet." : "");
  const focused = [...$("bots").querySelectorAll("a")].indexOf(document.activeElement);
  $("bots").replaceChildren(...bots.map(botItem));
  markChosen();
  $("bots").querySelectorAll("a")[focused]?.focus();
}

function botItem(bot) {
  const item = $("bot-item").content.cloneNode(true);
  const link = item.querySelector("a");
  link.href = "#" + new URLSearchParams({ bot: bot.slug });
  drawAvatar(item.querySelector(".avatar"), bot);
  item.querySelector(".bot-name").textContent = bot.name;
  item.querySelector(".bot-description").textContent = bot.description;
  return item;
}

function markChosen() {
  [...$("bots").querySelectorAll("a")].forEach((link, i) => {
    if (chat && bots[i].uid === chat.conversation.bot.uid) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
}

// note says something in place of the list, with a button where it helps.
function note(text, action, act) {
  const place = $("bots-note");
  place.hidden = !text;
  place.textContent = text;
  announce(text);
  if (!action) return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet";
  button.textContent = action;
  button.addEventListener("click", act);
  place.append(button);
}

// ---- The conversation on show ----

function slugInAddress() {
  return new URLSearchParams(location.hash.slice(1)).get("bot");
}

// namedBot is the bot that the address names, `#bot=slug`.
function namedBot() {
  return bots.find(({ slug }) => slug === slugInAddress());
}

// showFromAddress shows the bot that the address names. Without one, a wide
// screen has room for the first bot beside the list.
function showFromAddress() {
  const named = namedBot();
  const bot = named ?? (wide.matches || bots.length === 1 ? bots[0] : undefined);
  const left = bots.findIndex(({ uid }) => uid === chat?.conversation.bot.uid);
  leave();
  $("app").classList.toggle("chatting", bot !== undefined);
  $("chat-header").hidden = $("composer").hidden = bot === undefined;
  document.title = "Bots";
  if (bot) show(bot);
  else $("bots").querySelectorAll("a")[left]?.focus();
  markChosen();
  if (slugInAddress() && !named) refetch(); // it may be new
}

// leave puts the conversation on show aside, with its draft and its place.
function leave() {
  if (!chat) return;
  keepDraft();
  chat.place = scroller.place;
  chat = undefined;
  scroller.clear();
}

function show(bot) {
  chat = chatWith(bot);
  showBot(bot);
  compose(chat.editing ? chat.editing.draft : store.draft(bot.uid));
  $("editing").hidden = !chat.editing;
  scroller.show(chat.view.element, chat.place);
  showProgress();
  // Where the list is not in sight, say whose conversation this is; the
  // composer would also bring up a phone's keyboard.
  (wide.matches ? $("message") : $("chat-name")).focus({ preventScroll: true });
}

function showBot(bot) {
  document.title = `${bot.name} · Bots`;
  drawAvatar($("chat-avatar"), bot);
  $("chat-name").textContent = bot.name;
  $("chat-description").textContent = [bot.description, bot.model].filter(Boolean).join(" · ");
  $("message-label").textContent = `Message to ${bot.name}`;
}

function chatWith(bot) {
  if (!chats.has(bot.uid)) chats.set(bot.uid, newChat(bot));
  return chats.get(bot.uid);
}

function newChat(bot) {
  const conversation = new Conversation(bot, (request, options) => client.chat(request, options));
  conversation.addEventListener("start", () => announce(`${conversation.bot.name} is answering.`));
  conversation.addEventListener("end", ({ detail }) => ended(conversation, detail));
  return { conversation, view: new ConversationView(conversation, page), place: undefined, editing: null };
}

// page is what the view of a conversation may ask of the page around it.
const page = {
  edit: (turn) => edit(turn),
  announce: (text) => announce(text),
  focusComposer: () => $("message").focus(),
  changed(view) {
    if (view !== chat?.view) return;
    scroller.keepUp();
    showProgress();
  },
};

// ended has a screen reader say how an answer ended, and looks after what a
// failure says about the key and the bots.
function ended({ bot, turns }, { turn, error, stopped, kept }) {
  if (error?.status === 401) return askForKey("The server does not accept this key any more.");
  if (error?.status === 404) refetch();
  const trouble = error && troubleWith(turn, turn === turns.at(-1));
  if (trouble) announce(`${trouble.title} ${trouble.advice}`.trim());
  else announce(stopped ? "Stopped." : `${bot.name}: ${chats.get(bot.uid).view.spoken(turn)}`);
  $("composer-hint").classList.toggle("warning", !kept);
  if (!kept) $("composer-hint").textContent = "This browser has no room left: it will forget this conversation.";
}

// showProgress offers either to send or to stop, and keeps the focus on the
// composer when the button that had it goes.
function showProgress() {
  const { answering, isEmpty } = chat.conversation;
  const focused = [$("send"), $("stop"), $("start-over")].includes(document.activeElement);
  if ($("send").hidden === answering && $("start-over").hidden === isEmpty) return;
  $("send").hidden = answering;
  $("stop").hidden = !answering;
  $("start-over").hidden = $("menu-button").hidden = isEmpty;
  if (focused) (answering ? $("stop") : $("message")).focus();
}

// ---- The composer ----

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("message").value.trim();
  if (!text || chat.conversation.answering) return;
  const inPlaceOf = chat.editing?.turn;
  if (inPlaceOf) finishEditing();
  else compose("");
  keepDraft();
  scroller.toEnd();
  chat.conversation.say(text, inPlaceOf);
});

$("message").addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    $("composer").requestSubmit();
  }
  if (event.key === "ArrowUp" && $("message").value === "" && !chat.conversation.answering && !chat.conversation.isEmpty) {
    event.preventDefault();
    edit(chat.conversation.turns.at(-1));
  }
});

// compose puts text into the composer.
function compose(text) {
  $("message").value = text;
  direct();
}

// direct has the composer run as its text does. It stands in for dir="auto",
// with which Chromium takes minutes for a file of 20,000 lines.
function direct() {
  const [letter] = /\p{L}/u.exec($("message").value) ?? [""];
  $("message").dir = rightToLeft.test(letter) ? "rtl" : "ltr";
}

const rightToLeft = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

$("message").addEventListener("input", direct);

// edit puts a message of the user back into the composer. Sending it takes the
// place of the message and of all behind it.
function edit(turn) {
  chat.editing ??= { turn, draft: "", before: $("message").value };
  chat.editing.turn = turn;
  compose(turn.question);
  $("editing").hidden = false;
  $("message").focus();
  announce("Editing your message. Escape cancels.");
}

function finishEditing() {
  if (!chat?.editing) return;
  compose(chat.editing.before);
  $("editing").hidden = true;
  chat.editing = null;
}

$("cancel-editing").addEventListener("click", () => {
  finishEditing();
  $("message").focus();
});

// keepDraft keeps what is in the composer for when its bot is on show again.
function keepDraft() {
  if (!chat) return;
  if (chat.editing) chat.editing.draft = $("message").value;
  store.keepDraft(chat.conversation.bot.uid, chat.editing ? chat.editing.before : $("message").value);
}

// Escape stops the answer wherever the focus is: the one on show, or else any.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing || document.querySelector("dialog[open], :popover-open")) return;
  if (chat?.editing) return finishEditing();
  const answering = chat?.conversation.answering ? [chat] : [...chats.values()];
  answering.forEach(({ conversation }) => conversation.stop());
});

$("stop").addEventListener("click", () => chat.conversation.stop());

$("start-over").addEventListener("click", () => {
  finishEditing();
  chat.conversation.startOver();
  announce("The conversation starts over.");
  $("message").focus();
});

$("save-markdown").addEventListener("click", () => saveAs("md", "text/markdown", asMarkdown));
$("save-json").addEventListener("click", () => saveAs("json", "application/json", asJSON));

function saveAs(extension, type, format) {
  $("menu").hidePopover();
  save(`${chat.conversation.bot.slug}.${extension}`, type, format(chat.conversation));
}

// announce has a screen reader say something when it has finished speaking.
function announce(text) {
  $("announcement").textContent = text;
}

// ---- What happens around the page ----

addEventListener("hashchange", () => {
  if (takeKeyFromAddress()) return start();
  if (!$("app").hidden) showFromAddress();
});

addEventListener("pagehide", () => {
  keepDraft();
  chats.forEach(({ conversation }) => conversation.leave());
});

addEventListener("pageshow", ({ persisted }) => {
  if (persisted) chats.forEach(({ conversation }) => conversation.refresh()); // going back may bring the page as it was
});

document.addEventListener("visibilitychange", refetch);
addEventListener("online", refetch);
setInterval(refetch, 60_000);

store.watch(() => chats.forEach(({ conversation }) => conversation.refresh()));

takeKeyFromAddress();
start();
