// The chat page: a list of the bots and the conversations with them, beside the
// conversation on show.

import { BotClient } from "./client.js";
import { Conversation, asJSON, asMarkdown, fromJSON, newID } from "./conversation.js";
import { plainText } from "./rendering.js";
import { ConversationView, drawAvatar } from "./view.js";
import { Scroller } from "./scrolling.js";
import { directionOf } from "./direction.js";
import { save } from "./copying.js";
import { button } from "./elements.js";
import { withoutThought } from "./thought.js";
import { BotList, addressOf } from "./list.js";
import { options } from "./options.js";
import { settingsOf, store } from "./store.js";
import { explain, troubleWith } from "./words.js";

const $ = (id) => document.getElementById(id);
const service = document.title;
const { api, mostBytes, resume } = options; // mostBytes: in a request
const wide = matchMedia("(min-width: 46rem)");
const touch = matchMedia("(hover: none) and (pointer: coarse)");
const scroller = new Scroller($("scroller"), $("latest"));

let client; // set once there is a key
let bots = [];
let chat; // {conversation, view, position, editing}: the chat on show
const chats = new Map(); // all chats that have been on show, by the conversation's id
const lastChat = new Map(); // the id of the chat last on show, by the bot's uid
const deletions = new Map(); // {bot, name, slug, title, changed, isOnShow, chat, restore}: the conversations deleted last, by id
const mostDeletions = 5;

const list = new BotList($("bots"), { open: showFound, remove: deleteConversation, restore: restoreConversation });

// ---- The key ----

// takeKeyFromAddress removes the key from an address `/#key=...`, so that nobody
// sees or bookmarks it.
function takeKeyFromAddress() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const key = fragment.get("key");
  if (key === null) return false;
  store.keepKey(key.trim(), store.keepsKey);
  fragment.delete("key");
  const rest = fragment.toString();
  history.replaceState(null, "", location.pathname + location.search + (rest && "#" + rest));
  return true;
}

function askForKey(problem = "", isForgotten = false) {
  store.forgetKey();
  closeDialogs();
  leave();
  list.draw([], []);
  $("app").hidden = true;
  $("key-view").hidden = false;
  $("key").value = "";
  $("key-elsewhere").hidden = store.isBlocked || isForgotten || problem !== "" || (location.hash === "" && store.conversations().length === 0);
  showKeyProblem(problem);
}

function showKeyProblem(problem) {
  $("key-problem").hidden = !problem;
  $("key-problem").textContent = problem;
  $("key").focus();
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = $("key").value.trim(); // a pasted key often has white space around it
  if (!key) return showKeyProblem("Enter a key.");
  if (!/^[!-~]+$/.test(key)) return showKeyProblem("A key has no spaces and no accented letters.");
  store.keepKey(key, $("keep-key").checked);
  start();
});

// offerToKeep offers to keep the key in the browser. With the printed link, the
// form that offers it is never shown.
const offerToKeep = () => { $("keep-offer").hidden = store.keepsKey || store.isBlocked; };

$("keep-now").addEventListener("click", () => {
  store.keepKey(store.key, true);
  offerToKeep();
  announce(store.keepsKey ? "This browser keeps the key until you forget it." : "This browser cannot keep the key.");
  focusMain();
});

$("forget-key").addEventListener("click", () => $("forget-dialog").showModal());
$("delete-all").addEventListener("click", () => $("delete-dialog").showModal());

$("forget-now").addEventListener("click", () => {
  if ($("forget-chats").checked) store.deleteConversations();
  store.forgetKey(true);
  forgetKey();
});

function forgetKey() {
  forgetChats();
  store.keepPlace("");
  history.replaceState(null, "", location.pathname + location.search);
  askForKey("", true);
}

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
  lastChat.clear();
  deletions.clear();
  chat = undefined;
  compose("");
}

// ---- The bots ----

// start lists the bots, or asks for a key if there is none.
async function start() {
  if (!store.key) return askForKey();
  client = new BotClient(new URL(api, document.baseURI), store.key);
  $("key-view").hidden = true;
  $("app").hidden = false;
  $("app").classList.remove("listed");
  offerToKeep();
  note("Loading the bots…");
  try {
    bots = await client.bots();
  } catch (error) {
    if (error.status === 401) return askForKey("The server did not accept this key.");
    const { title, advice = "" } = explain(error);
    return note(`${title} ${advice}`, "Try again", start);
  }
  noteOnBots();
  showFromAddress();
  resumeAll();
  if (store.isBlocked) announce(hint);
}

// resumeAll continues the answers that were in progress when the page was closed.
function resumeAll() {
  for (const { id, bot, pending } of store.conversations()) {
    const known = bots.find(({ uid }) => uid === bot);
    if (known && pending) chatWith(known, id).conversation.resume();
  }
}

// botOf returns the bot with a uid, perhaps one that is gone: it is not listed any
// more, but there are conversations with it.
function botOf({ bot: uid, name, slug }) {
  return bots.find((each) => each.uid === uid) ?? { uid, name, slug, description: "", gone: true };
}

// refetch lists the bots again: every minute, and when they may have changed. If
// that fails, the page keeps the list that it has.
async function refetch() {
  if ($("app").hidden || document.hidden) return;
  const fresh = await client.bots().catch(() => bots);
  if ($("app").hidden || JSON.stringify(fresh) === JSON.stringify(bots)) return;
  bots = fresh;
  for (const { conversation } of chats.values()) {
    conversation.bot = botOf({ ...conversation.bot, bot: conversation.bot.uid });
  }
  noteOnBots();
  const named = namedBot();
  if (!chat || (named && named.uid !== chat.conversation.bot.uid)) showFromAddress();
  else showBot(chat.conversation.bot);
  drawList();
}

function noteOnBots() {
  $("app").classList.toggle("listed", bots.length > 0);
  note(bots.length === 0 ? "No bot is published here yet." : "");
}

function drawList() {
  const known = conversations();
  const words = $("search").value.trim();
  const found = known.filter((each) => !words || store.includes(each, words));
  const listed = bots.filter(({ uid }) => !words || found.some(({ bot }) => bot.uid === uid));
  list.draw(listed, found, chat && { bot: chat.conversation.bot.uid, id: chat.conversation.id }, words !== "");
  $("search").hidden = known.length < 2 && !words;
  $("not-found").hidden = !words || found.length > 0;
  $("app").classList.toggle("alone", bots.length === 1 && known.length === 0); // there is no list to go back to; :has() would look for it at each new text
}

// conversations returns the stored conversations, those that the store had no
// room for, and those that were just deleted.
function conversations() {
  const kept = new Map(store.conversations().map((each) => [each.id, each]));
  for (const { conversation: { id, bot, name, isEmpty } } of chats.values()) {
    if (!isEmpty && !kept.has(id)) kept.set(id, { id, bot: bot.uid, name: bot.name, slug: bot.slug, title: name, changed: Infinity });
  }
  for (const [id, each] of deletions) {
    if (!kept.has(id)) kept.set(id, { ...each, id, deleted: true }); // otherwise another tab goes on with it
  }
  const unseen = store.unseen();
  return [...kept.values()].sort((a, b) => b.changed - a.changed).map((each) => ({ ...each, bot: botOf(each), state: stateOf(each.id, unseen) }));
}

// showFound shows the version of a conversation in which the search has found something.
function showFound({ bot, id }) {
  const words = $("search").value.trim();
  if (words) chatWith(bot, id).conversation.showWith(words);
}

// seeChat notes that somebody sees the conversation on show.
function seeChat() {
  if (chat && !document.hidden && store.unseen().includes(chat.conversation.id)) store.see(chat.conversation.id);
}

function stateOf(id, unseen) {
  return chats.get(id)?.conversation.answering ? "answering" : unseen.includes(id) ? "unseen" : "";
}

// deleteConversation can be undone until some more are deleted.
function deleteConversation({ id, bot, title, changed }, isByKey) {
  const { uid, name, slug } = bot;
  const kept = chats.get(id);
  kept?.conversation.stop();
  const isOnShow = kept !== undefined && kept === chat;
  if (isOnShow) leave();
  deletions.set(id, { bot: uid, name, slug, title, changed, isOnShow, chat: kept, restore: store.remove(id) });
  if (deletions.size > mostDeletions) deletions.delete(deletions.keys().next().value);
  dropChat(id);
  if (isOnShow) go(addressOf(bot));
  else drawList();
  announce("The conversation is deleted.");
  if (isByKey) focusItem(bot, id, ".restore");
  else if (chat) focusChat(); // what is typed next is a message
}

function dropChat(id) {
  const uid = chats.get(id)?.conversation.bot.uid;
  chats.delete(id);
  if (lastChat.get(uid) === id) lastChat.delete(uid);
}

function restoreConversation({ id, bot }) {
  const { isOnShow, chat: kept, restore } = deletions.get(id);
  deletions.delete(id);
  restore();
  if (kept) chats.set(id, kept);
  announce("The conversation is back.");
  if (isOnShow) return go(addressOf(bot, id));
  drawList();
  focusItem(bot, id, "a");
}

// focusItem focuses a part of a conversation's item in the list, if it is listed.
function focusItem(bot, id, part) {
  $("bots").querySelector(`.conversation-item:has(a[href="${CSS.escape(addressOf(bot, id))}"]) ${part}`)?.focus();
}

// go replaces the address and shows the chat that it names.
function go(address) {
  history.replaceState(null, "", address);
  showFromAddress();
}

// note shows a text in place of the list, with an optional button.
function note(text, action, act) {
  const element = $("bots-note");
  element.hidden = !text;
  element.textContent = text;
  announce(text);
  if (!action) return;
  element.append(button(action, "quiet", act));
}

// ---- The conversation on show ----

// inAddress returns a parameter of the address: `#bot=slug&chat=id`, `#bot=slug`
// for the last conversation with a bot, or `#chat=id` if the bot is gone.
function inAddress(name) {
  return new URLSearchParams(location.hash.slice(1)).get(name);
}

// nameInAddress names the conversation on show in the address, which may name only its bot:
// "Back" from another conversation leads to this one.
function nameInAddress() {
  const { bot, id, isEmpty } = chat.conversation;
  if (!isEmpty && !inAddress("chat") && (inAddress("bot") ?? bot.slug) === bot.slug) history.replaceState(null, "", addressOf(bot, id));
}

function namedBot() {
  const slug = inAddress("bot");
  const isNamed = ({ id, bot }) => id === inAddress("chat") || (bot.gone && bot.slug === slug);
  return bots.find((bot) => bot.slug === slug) ?? conversations().find(isNamed)?.bot;
}

// showFromAddress shows the bot that the address names. If it names none, a wide
// screen shows the first bot beside the list.
function showFromAddress() {
  const named = namedBot();
  const bot = named ?? (wide.matches || (bots.length === 1 && location.hash !== "#bots") ? bots[0] : undefined);
  const left = bots.findIndex(({ uid }) => uid === chat?.conversation.bot.uid);
  leave();
  $("app").classList.toggle("chatting", bot !== undefined);
  $("chat-header").hidden = $("composer").hidden = bot === undefined;
  document.title = service;
  if (bot) show(bot, (named && chatInAddress(bot)) ?? lastChatWith(bot));
  drawList();
  if (!bot) $("bots").querySelectorAll(".bot")[left]?.focus();
  if (inAddress("bot") && !named) refetch(); // the bot may be new
}

// leave hides the conversation on show, and keeps its draft and scroll position.
function leave() {
  if (!chat) return;
  keepDraft();
  chat.position = scroller.position;
  chat = undefined;
  scroller.clear();
}

// chatInAddress returns the id of the conversation that the address names, which
// may be new. It returns null if that conversation is with another bot, or deleted.
function chatInAddress(bot) {
  const id = inAddress("chat");
  const known = chats.get(id)?.conversation.bot.uid ?? store.conversations().find((each) => each.id === id)?.bot;
  return id && !deletions.has(id) && (known ?? bot.uid) === bot.uid ? id : null;
}

// lastChatWith returns the id of the bot's conversation that was on show last. If
// none was, it is the latest stored one or, if there is none, a new id.
function lastChatWith(bot) {
  return lastChat.get(bot.uid) ?? store.conversations().find((each) => each.bot === bot.uid)?.id ?? newID();
}

function show(bot, id) {
  lastChat.set(bot.uid, id);
  chat = chatWith(bot, id);
  seeChat();
  nameInAddress();
  showBot(bot);
  compose(chat.editing ? chat.editing.draft : store.draft(draftName()));
  $("editing").hidden = !chat.editing;
  $("too-early").hidden = true;
  scroller.show(chat.view.element, chat.position);
  chat.conversation.resume();
  showProgress();
  resumeEditing();
  focusChat();
}

// resumeEditing goes on with an edit that was in progress when the page was closed.
function resumeEditing() {
  const { id, turns } = chat.conversation;
  const kept = store.edit(id);
  const turn = turns.find((each) => each.id === kept?.turn);
  if (turn && !chat.editing) edit(turn, kept.text);
}

// focusChat focuses the composer. On a narrow screen it focuses the bot's name
// instead, so that a screen reader says it, and a phone shows no keyboard yet.
function focusChat() {
  (wide.matches ? $("message") : $("chat-name")).focus({ preventScroll: true });
}

// focusMain focuses the conversation on show or, without one, the list.
function focusMain() {
  if (chat) focusChat();
  else $("bots").querySelector("a")?.focus();
}

// focusComposer focuses the composer, but where that would open a keyboard on the screen.
function focusComposer() {
  (touch.matches ? $("chat-name") : $("message")).focus({ preventScroll: true });
}

function showBot(bot) {
  $("chat").classList.toggle("gone", Boolean(bot.gone));
  $("gone-note").hidden = !bot.gone;
  drawAvatar($("chat-avatar"), bot);
  $("chat-name").textContent = bot.name;
  $("message-label").textContent = `Message to ${bot.name}`;
  $("new-chat").href = addressOf(bot, newID());
  showName();
}

// showName shows the name of the conversation or, before its first message, what the
// bot does, and marks the menu of a conversation that has settings.
function showName() {
  const { bot, name, settings } = chat.conversation;
  const isSet = Object.keys(settings).length > 0;
  $("menu-button").classList.toggle("set", isSet);
  $("menu-button").setAttribute("aria-label", isSet ? "More for this conversation, which has instructions or parameters" : "More for this conversation");
  document.title = [name, bot.name, service].filter(Boolean).join(" · ");
  $("chat-description").textContent = $("chat-description").title = name || [bot.description, bot.model].filter(Boolean).join(" · ");
}

function chatWith(bot, id) {
  if (!chats.has(id)) chats.set(id, newChat(bot, id));
  return chats.get(id);
}

function newChat(bot, id) {
  const conversation = new Conversation(bot, id, {
    chat: (request, options) => client.chat(request, options),
    stop: resume && ((key) => client.stop(key)),
  });
  conversation.addEventListener("change", () => {
    drawList();
    if (chat?.conversation !== conversation) return;
    nameInAddress();
    showName();
    showLength();
  });
  conversation.addEventListener("deleted", () => chat?.conversation === conversation && announce("This conversation was deleted in another tab."));
  conversation.addEventListener("start", () => announce(`${conversation.bot.name} is answering.`));
  conversation.addEventListener("end", ({ detail }) => ended(conversation, detail));
  return { conversation, view: new ConversationView(conversation, page), position: undefined, editing: null };
}

// page has the functions of this page that the view of a conversation may call.
const page = {
  ask(question) {
    scroller.toEnd();
    store.keepDraft(draftName(), "");
    chat.conversation.say(question);
    focusChat();
  },
  edit: (turn) => edit(turn),
  canShorten,
  shorten: (turn) => shorten(turn),
  turn(turn, index, name, direction) {
    finishEditing();
    const { conversation, view } = chat;
    const at = conversation.turns.findIndex(({ id }) => id === turn.id);
    conversation.show(turn, index);
    view.focusVersions(at, name, direction);
    announce(`Another version of the ${name} is on show.`);
  },
  announce: (text) => announce(text),
  focusComposer,
  changed(view) {
    if (view !== chat?.view) return;
    scroller.keepUp();
    showProgress();
  },
};

// ended announces how an answer ended. If the error says so, it asks for a new
// key or lists the bots again.
function ended({ id, bot, turns }, { turn, error, stopped, isNew, fate }) {
  const ended = chats.get(id);
  if (ended && isNew && (ended !== chat || document.hidden)) store.miss(id);
  drawList();
  if (error?.status === 401) return askForKey("The server does not accept this key any more.");
  if (error?.status === 404) refetch();
  const trouble = error && troubleWith(turn, turn === turns.at(-1));
  const said = trouble ? `${trouble.title} ${trouble.advice}` : stopped ? "Stopped." : `${bot.name}: ${spoken(withoutThought(turn.answer))}`;
  announce(`${said} ${room[fate] ?? ""}`.trim());
  showRoom(fate);
}

// showRoom says below the composer what the browser does not keep. Otherwise, it has a hint there.
function showRoom(fate) {
  $("composer-hint").classList.toggle("warning", store.isBlocked || fate !== "kept");
  $("composer-hint").textContent = room[fate] ?? hint;
}

let hint; // how to use the composer, or that nothing is kept: see nameKeys

const room = {
  "no room": "This browser has no room left: it will forget this conversation.",
  "made room": "This browser had no room left: your oldest conversations are deleted.",
};

// An announcement contains at most this many characters of an answer.
const readOut = 5000;

function spoken(answer) {
  const text = plainText(answer.slice(0, readOut)) || "The answer is empty.";
  return answer.length > readOut ? `${text} … The rest is in the conversation.` : text;
}

// showProgress shows either the send or the stop button. If the button that has
// the focus disappears, the focus moves to the other one or to the composer.
function showProgress() {
  const { answering, isEmpty } = chat.conversation;
  $("too-early").hidden ||= !answering;
  const focused = [$("send"), $("stop"), $("new-chat")].includes(document.activeElement);
  if ($("send").hidden === answering && $("new-chat").hidden === isEmpty) return;
  $("send").hidden = answering;
  $("stop").hidden = !answering;
  for (const id of ["new-chat", "rename", "save-markdown", "save-json", "start-over"]) $(id).hidden = isEmpty;
  if (focused && answering) $("stop").focus();
  else if (focused) focusComposer();
}

// ---- The composer ----

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("message").value.trim();
  if (!text) return;
  if (chat.conversation.answering) {
    $("too-early").hidden = false;
    return announce($("too-early").textContent);
  }
  const inPlaceOf = chat.editing?.turn;
  if (inPlaceOf) finishEditing();
  else compose("");
  keepDraft();
  scroller.toEnd();
  chat.conversation.say(text, inPlaceOf);
});

$("message").addEventListener("keydown", (event) => {
  if (event.isComposing || event.keyCode === 229) return; // Safari confirms a conversion with an Enter of this code
  const isLine = event.shiftKey || (touch.matches && !event.ctrlKey && !event.metaKey); // keyboards on a screen have no Shift and Enter
  if (event.key === "Enter" && !isLine) {
    event.preventDefault();
    $("composer").requestSubmit();
  }
  if (event.key === "ArrowUp" && $("message").value === "" && !chat.conversation.answering && !chat.conversation.isEmpty) {
    event.preventDefault();
    edit(chat.conversation.turns.at(-1));
  }
});

// nameKeys says which keys send and start a line.
function nameKeys() {
  const [send, line] = touch.matches ? ["Ctrl Enter", "Enter"] : ["Enter", "Shift Enter"];
  $("send-keys").textContent = send;
  $("line-keys").textContent = line;
  const keys = `${send} sends, ${line} starts a line, Escape stops. Ctrl / lists all shortcuts.`.replace(/(Ctrl|Shift) /g, "$1 and ");
  hint = store.isBlocked ? $("key-unstored").textContent : keys;
  if (!$("composer-hint").matches(".warning")) $("composer-hint").textContent = hint;
}

touch.addEventListener("change", nameKeys);

// compose sets the text of the composer.
function compose(text) {
  $("message").value = text;
  composed();
}

// composed sets the direction of the composer to that of its text, and disables
// the send button if there is none.
function composed() {
  const text = $("message").value;
  $("message").dir = directionOf([text]);
  $("send").disabled = text.trim() === "";
  if (chat) showLength();
}

// showLength warns before the conversation is too long for the server, and offers to
// leave out what is old.
function showLength() {
  const { conversation, editing } = chat;
  const text = $("message").value.trim();
  const size = conversation.size(text, editing?.turn);
  const isShortenable = canShorten(conversation, text, editing?.turn);
  const warning = size <= 0.8 * mostBytes ? ""
    : !isShortenable ? "This message is too long for the server, or almost."
    : size <= mostBytes ? "The conversation is almost too long for the server."
    : text ? "With this message, the conversation is too long for the server." : "The conversation is too long for the server.";
  if ($("length-text").textContent !== warning) announce(warning);
  $("length-text").textContent = warning;
  $("length").hidden = !warning;
  $("shorten").hidden = !isShortenable;
}

// canShorten reports whether a message fits if what is before it is left out.
function canShorten(conversation, question, turn) {
  return conversation.canShorten(turn) && new Blob([question]).size <= 0.8 * mostBytes;
}

// shorten goes on without the oldest messages. It asks again for a turn that was too long.
function shorten(turn) {
  chat.conversation.shorten(mostBytes, turn ?? chat.editing?.turn);
  if (turn) chat.conversation.regenerate(turn);
  announce("The bot gets only the most recent messages from now on.");
  focusComposer();
}

$("shorten").addEventListener("click", () => shorten());

$("message").addEventListener("input", composed);

// edit puts a message of the user back into the composer. Sending it replaces the
// message and everything after it.
function edit(turn, text = turn.question) {
  chat.editing ??= { turn, draft: "", before: $("message").value };
  chat.editing.turn = turn;
  chat.view.markEdited(turn);
  compose(text);
  $("editing").hidden = false;
  $("message").focus();
  announce("Editing your message. Escape cancels.");
}

function finishEditing() {
  if (!chat?.editing) return;
  compose(chat.editing.before);
  $("editing").hidden = true;
  chat.editing = null;
  store.keepEdit(chat.conversation.id, "");
  chat.view.markEdited(null);
}

$("cancel-editing").addEventListener("click", () => {
  finishEditing();
  $("message").focus();
});

// keepDraft stores the text of the composer, also of an edit, until its conversation is on
// show again.
function keepDraft() {
  if (!chat) return;
  if (chat.editing) chat.editing.draft = $("message").value;
  if (chat.editing && !chat.conversation.isEmpty) store.keepEdit(chat.conversation.id, { turn: chat.editing.turn.id, text: chat.editing.draft });
  store.keepDraft(draftName(), chat.editing ? chat.editing.before : $("message").value);
}

// draftName returns the key of a draft: the conversation's id or, if the
// conversation is empty, the bot's uid.
function draftName() {
  const { id, bot, isEmpty } = chat.conversation;
  return isEmpty ? bot.uid : id;
}

// Escape stops the answer on show, wherever the focus is.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing || document.querySelector("dialog[open], :popover-open, #search:focus:not(:placeholder-shown)")) return;
  if (chat?.editing) finishEditing();
  else chat?.conversation.stop();
});

// ---- Shortcuts and the theme ----

const shortcuts = {
  "?": () => $("help-dialog").showModal(),
  "Ctrl /": () => $("help-dialog").showModal(),
  "Ctrl Shift O": () => $("new-chat").checkVisibility() && $("new-chat").click(),
  "Ctrl Shift L": () => {
    if (!$("bots").checkVisibility()) return go("#bots"); // on a narrow screen
    ($("bots").querySelector("[aria-current]") ?? $("bots").querySelector("a"))?.focus();
  },
  "Ctrl K": () => $("search").focus(),
};

document.addEventListener("keydown", (event) => {
  const { key, ctrlKey, metaKey, shiftKey, target } = event;
  const isControl = ctrlKey || metaKey;
  const act = shortcuts[isControl ? ["Ctrl", ...(shiftKey && key !== "/" ? ["Shift"] : []), key.toUpperCase()].join(" ") : key];
  if (!act || $("app").hidden || document.querySelector("dialog[open]") || (!isControl && target.matches("input, textarea"))) return;
  event.preventDefault();
  act();
});

$("help").addEventListener("click", shortcuts["?"]);

$("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the conversation
  focusMain();
});

const themes = { "": "light", light: "dark", dark: "" }; // the next of each

function showTheme() {
  document.documentElement.dataset.theme = store.theme();
  $("theme").textContent = `Theme: ${store.theme() || "automatic"}`;
}

$("theme").addEventListener("click", () => {
  store.keepTheme(themes[store.theme()]);
  showTheme();
});

$("stop").addEventListener("click", () => chat.conversation.stop());

$("menu").addEventListener("click", () => $("menu").hidePopover(), { capture: true }); // before one of its buttons acts

$("start-over").addEventListener("click", () => {
  finishEditing();
  chat.conversation.startOver();
  announce("The conversation is cleared.");
  $("message").focus();
});

$("save-markdown").addEventListener("click", () => saveAs("md", "text/markdown", asMarkdown));
$("save-json").addEventListener("click", () => saveAs("json", "application/json", asJSON));

function saveAs(extension, type, format) {
  const { bot, name } = chat.conversation;
  const words = name.slice(0, 60).match(/[\p{L}\p{N}]+/gu) ?? [];
  save(`${[bot.slug, ...words].join("-").toLowerCase()}.${extension}`, type, format(chat.conversation));
}

$("import").addEventListener("click", () => $("import-file").click());

$("import-file").addEventListener("change", async () => {
  const [file] = $("import-file").files;
  $("import-file").value = "";
  try {
    const { turns, ...read } = fromJSON(await file.text());
    const bot = bots.find(({ uid }) => uid === read.bot.uid) ?? bots.find(({ slug }) => slug === read.bot.slug) ?? botOf({ ...read.bot, bot: read.bot.uid });
    const id = newID();
    const fate = store.keep({ ...read, bot, id }, turns);
    note(room[fate] ?? "");
    location.hash = addressOf(bot, id);
    announce(room[fate] ?? "The conversation is imported.");
  } catch {
    note("This file has no conversation: choose one from “Save as JSON”.");
    setTimeout(noteOnBots, 10_000);
  }
});

$("search").addEventListener("input", () => {
  drawList();
  announce($("not-found").hidden ? "" : $("not-found").textContent);
});

// From the search field, ArrowDown leads to the first result, and Enter opens it.
$("search").addEventListener("keydown", (event) => {
  const first = $("bots").querySelector(".conversation-item:not(.deleted) > a");
  if (event.isComposing || !first || !["ArrowDown", "Enter"].includes(event.key)) return;
  event.preventDefault();
  if (event.key === "ArrowDown") first.focus();
  else if ($("search").value.trim()) first.click();
});

$("rename").addEventListener("click", () => {
  $("title").value = chat.conversation.name;
  $("rename-dialog").showModal();
  $("title").select();
});

onSubmit("rename-dialog", () => chat.conversation.set({ title: $("title").value.trim() }));

$("set").addEventListener("click", () => {
  for (const name of ["system", "temperature", "max_tokens"]) $(name).value = chat.conversation.settings[name] ?? "";
  $("settings-dialog").showModal();
});

onSubmit("settings-dialog", () => {
  const [system, temperature, most] = ["system", "temperature", "max_tokens"].map((name) => $(name).value.trim());
  chat.conversation.set({ settings: settingsOf({ system, temperature: temperature ? Number(temperature) : undefined, max_tokens: Number(most) }) });
});

// onSubmit closes a dialog and acts when its form is submitted.
function onSubmit(dialog, act) {
  $(dialog).addEventListener("submit", (event) => {
    event.preventDefault();
    $(dialog).close();
    act();
    focusComposer();
  });
}

// announce makes a screen reader say a text after what it is saying.
function announce(text) {
  $("announcement").textContent = text;
}

// ---- What happens around the page ----

addEventListener("hashchange", () => {
  if (takeKeyFromAddress()) return start();
  if (!$("app").hidden) showFromAddress();
});

addEventListener("pagehide", () => {
  store.keepPlace(location.hash);
  keepDraft();
  chats.forEach(({ conversation }) => conversation.leave());
});

addEventListener("pageshow", ({ persisted }) => {
  if (!persisted) return;
  chats.forEach(({ conversation }) => conversation.refresh()); // the browser's back-forward cache restores an old state
  chat?.conversation.resume();
});

document.addEventListener("visibilitychange", () => {
  seeChat();
  if (!document.hidden) chat?.conversation.resume();
  if (!$("app").hidden) drawList();
  refetch();
});
addEventListener("online", refetch);
setInterval(refetch, 60_000);

store.watch({
  changed(id) {
    if (id) chats.get(id)?.conversation.refresh();
    else chats.forEach(({ conversation }) => conversation.refresh());
    if (!document.hidden && chat?.conversation.turns.at(-1)?.pending?.kept) chat.conversation.resume(); // it is being answered in that tab
    if (!$("app").hidden) drawList();
  },
  keyChanged(isForgotten) {
    if (isForgotten) forgetKey();
    else if ($("app").hidden) start();
  },
  drafted(id, before, text) {
    if (!chat || draftName() !== id) return;
    if (chat.editing?.before === before) chat.editing.before = text;
    else if (!chat.editing && $("message").value === before) compose(text);
  },
  missed() {
    seeChat();
    if (!$("app").hidden) drawList();
  },
  themed: showTheme,
  isInUse: (id) => id === chat?.conversation.id || chats.get(id)?.conversation.answering,
  evicted(id) {
    dropChat(id);
    drawList();
  },
});

$("keep-choice").hidden = store.isBlocked;
$("key-unstored").hidden = !store.isBlocked;
nameKeys();
showRoom("kept");
showTheme();
takeKeyFromAddress();
start();
