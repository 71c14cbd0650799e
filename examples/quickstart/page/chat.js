// The chat page: a list of bots beside one conversation for each of them.

import { BotClient } from "./client.js";
import { Conversation, drawAvatar } from "./conversation.js";
import { explain } from "./words.js";

const $ = (id) => document.getElementById(id);
const wide = matchMedia("(min-width: 46rem)");

let client; // set once there is a key
let bots = [];
let conversation; // the one on show
const conversations = new Map(); // by the bot's uid

// ---- The key ----

const keyName = "botapi.key";

// takeKeyFromAddress moves a key out of the address, `/#key=...`, before
// anybody reads or bookmarks it.
function takeKeyFromAddress() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const key = fragment.get("key");
  if (key === null) return;
  sessionStorage.setItem(keyName, key);
  fragment.delete("key");
  const rest = fragment.toString();
  history.replaceState(null, "", location.pathname + location.search + (rest && "#" + rest));
}

function askForKey(problem = "") {
  sessionStorage.removeItem(keyName);
  $("app").hidden = true;
  $("key-view").hidden = false;
  $("key-problem").hidden = !problem;
  $("key-problem").textContent = problem;
  $("key").value = "";
  $("key").focus();
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(keyName, $("key").value);
  start();
});

$("forget-key").addEventListener("click", () => {
  conversations.forEach((each) => each.forget());
  conversations.clear();
  conversation = undefined;
  for (const name of Object.keys(sessionStorage)) {
    if (name.startsWith("botapi.")) sessionStorage.removeItem(name);
  }
  history.replaceState(null, "", location.pathname + location.search);
  askForKey();
});

// ---- The bots ----

// start lists the bots with the key at hand, or asks for one.
async function start() {
  const key = sessionStorage.getItem(keyName);
  if (!key) return askForKey();
  client = new BotClient(document.baseURI, key);
  $("key-view").hidden = true;
  $("app").hidden = false;
  await listBots();
}

async function listBots() {
  note("Loading the bots…");
  try {
    bots = await client.bots();
  } catch (error) {
    if (error.status === 401) return askForKey("The server did not accept this key.");
    const { title, advice = "" } = explain(error);
    return note(`${title} ${advice}`, "Try again", listBots);
  }
  note(bots.length === 0 ? "No bot is published here yet." : "");
  $("bots").replaceChildren(...bots.map(botItem));
  showFromAddress();
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

// showFromAddress shows the bot that the address names, `#bot=slug`. Without
// one, a wide screen has room for the first bot beside the list.
function showFromAddress() {
  const slug = new URLSearchParams(location.hash.slice(1)).get("bot");
  const bot = bots.find((bot) => bot.slug === slug) ?? (wide.matches || bots.length === 1 ? bots[0] : undefined);
  $("app").classList.toggle("chatting", bot !== undefined);
  [...$("bots").querySelectorAll("a")].forEach((link, i) => {
    if (bots[i] === bot) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  show(bot);
}

function show(bot) {
  $("chat-header").hidden = $("composer").hidden = bot === undefined;
  document.title = bot ? `${bot.name} · Bots` : "Bots";
  if (!bot) return leave();
  conversation = conversationWith(bot);
  drawAvatar($("chat-avatar"), bot);
  $("chat-name").textContent = bot.name;
  $("chat-description").textContent = [bot.description, bot.model].filter(Boolean).join(" · ");
  $("message-label").textContent = `Message to ${bot.name}`;
  $("scroller").replaceChildren(conversation.element);
  scrollToEnd();
  showProgress();
  // Where the list is not in sight, say whose conversation this is; the
  // composer would also bring up a phone's keyboard.
  (wide.matches ? $("message") : $("chat-name")).focus();
}

// leave goes back to the list, at the bot that was on show.
function leave() {
  const left = bots.findIndex((bot) => bot === conversation?.bot);
  conversation = undefined;
  $("scroller").replaceChildren();
  $("bots").querySelectorAll("a")[left]?.focus();
}

function conversationWith(bot) {
  if (!conversations.has(bot.uid)) conversations.set(bot.uid, new Conversation(bot, page));
  return conversations.get(bot.uid);
}

// page is what a conversation may ask of the page around it.
const page = {
  chat: (request, signal) => client.chat(request, signal),
  announce,
  keyRefused: () => askForKey("The server does not accept this key any more."),
  // changed is called after a conversation has changed what it shows.
  changed(which, atEnd) {
    if (which !== conversation) return;
    if (atEnd) scrollToEnd();
    showProgress();
  },
  focusComposer: () => $("message").focus(),
  isAtEnd: () => $("scroller").scrollHeight - $("scroller").scrollTop - $("scroller").clientHeight < 64,
};

// showProgress offers either to send or to stop, and keeps the focus on the
// composer when the button that had it goes.
function showProgress() {
  const focused = [$("send"), $("stop")].includes(document.activeElement);
  $("send").hidden = conversation.answering;
  $("stop").hidden = !conversation.answering;
  $("start-over").hidden = conversation.isEmpty;
  if (focused) (conversation.answering ? $("stop") : $("message")).focus();
}

function scrollToEnd() {
  $("scroller").scrollTop = $("scroller").scrollHeight;
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("message").value.trim();
  if (!text || conversation.answering) return;
  $("message").value = "";
  conversation.say(text);
});

$("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("composer").requestSubmit();
});

$("chat").addEventListener("keydown", (event) => {
  if (event.key === "Escape") conversation?.stop();
});

$("stop").addEventListener("click", () => conversation.stop());

$("start-over").addEventListener("click", () => {
  conversation.startOver();
  $("message").focus();
});

// announce has a screen reader say something when it has finished speaking.
function announce(text) {
  $("announcement").textContent = text;
}

addEventListener("hashchange", () => {
  const hadKey = new URLSearchParams(location.hash.slice(1)).has("key");
  takeKeyFromAddress();
  if (hadKey) return start();
  if (!$("app").hidden) showFromAddress();
});

takeKeyFromAddress();
start();
