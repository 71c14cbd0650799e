// The list of bots, with the conversations of each below it.

import { drawAvatar } from "./view.js";
import { arrange, el, template } from "./elements.js";

// The number of conversations that are listed of a bot that is not on show.
const few = 3;

export class BotList {
  #element;
  #page; // {open(conversation), remove(conversation, isByKey), restore(conversation)}
  #bots = new Map(); // views by the bot's uid
  #gone = new Map(); // views of conversations with other bots, by id
  #goneList = el("ul", { class: "conversations", "aria-labelledby": "gone-title" });
  #goneItem = el("li", null, el("h3", { class: "notice", id: "gone-title" }, "No longer here"), this.#goneList);

  constructor(element, page) {
    this.#element = element;
    this.#page = page;
    element.addEventListener("keydown", (event) => {
      const items = [...element.querySelectorAll(".bot, .conversation-item > a, .restore, .all")].filter((item) => item.checkVisibility());
      const at = items.indexOf(event.target);
      const next = items[{ ArrowUp: at - 1, ArrowDown: at + 1, Home: 0, End: items.length - 1 }[event.key]];
      if (at < 0 || !next || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault(); // of scrolling
      next.focus();
    });
  }

  // draw shows the bots and their conversations {id, bot, title, state}, one of
  // which may be chosen, and then those with bots that are gone. A conversation that
  // was just deleted keeps its place, with an Undo button. If all is set, no conversations
  // of a bot are left out.
  draw(bots, conversations, { bot, id } = {}, all = false) {
    const views = new Map(bots.map((each) => [each.uid, this.#bots.get(each.uid) ?? new BotView(this.#page)]));
    this.#bots = views;
    for (const each of bots) {
      views.get(each.uid).show(each, conversations.filter((conversation) => conversation.bot.uid === each.uid), each.uid === bot, id, all);
    }
    this.#gone = itemsFor(conversations.filter(({ bot }) => bot.gone), this.#gone, this.#page, id);
    arrange(this.#goneList, elementsOf(this.#gone));
    arrange(this.#element, [...elementsOf(views), ...(this.#gone.size > 0 ? [this.#goneItem] : [])]);
  }
}

const elementsOf = (views) => [...views.values()].map(({ element }) => element);

// itemsFor returns views of conversations by id, some of which may exist already.
function itemsFor(conversations, known, page, chosen) {
  return new Map(conversations.map((each) => {
    const item = known.get(each.id) ?? new ConversationItem(page);
    item.show(each, each.id === chosen);
    return [each.id, item];
  }));
}

class BotView {
  element = template("bot-item");
  #page;
  #looks;
  #conversations = new Map(); // views by id
  #all = false; // whether all conversations are listed
  #days = new Map(); // the headings of days, by their names

  constructor(page) {
    this.#page = page;
    this.#find(".all").addEventListener("click", () => {
      this.#all = true;
      this.#arrange();
    });
  }

  #find(selector) {
    return this.element.querySelector(selector);
  }

  show(bot, conversations, isChosen, chosen, all) {
    const looks = JSON.stringify(bot);
    if (looks !== this.#looks) this.#draw(bot);
    this.#looks = looks;
    choose(this.#find(".bot"), isChosen);
    showState(this.#find(".bot"), conversations.find(({ state }) => state === "answering")?.state ?? conversations.find(({ state }) => state)?.state);
    this.#conversations = itemsFor(conversations, this.#conversations, this.#page, chosen);
    this.isFull = isChosen || all;
    this.#arrange();
  }

  #arrange() {
    const items = [...this.#conversations.values()];
    const isCut = !this.#all && !this.isFull && items.length > few + 1;
    arrange(this.#find(".conversations"), this.#byDay(isCut ? items.slice(0, few) : items));
    this.#find(".conversations").hidden = items.length === 0;
    this.#find(".all").hidden = !isCut;
    this.#find(".all").textContent = `Show all ${items.length}`;
  }

  // byDay puts the name of the day before the first item of each day but today.
  #byDay(items) {
    return items.flatMap(({ day, element }, i) => {
      if (day === (items[i - 1]?.day ?? "Today")) return [element];
      if (!this.#days.has(day)) this.#days.set(day, el("li", { class: "day" }, day));
      return [this.#days.get(day), element];
    });
  }

  #draw(bot) {
    this.#find(".bot").href = addressOf(bot);
    drawAvatar(this.#find(".avatar"), bot);
    this.#find(".bot-name").textContent = bot.name;
    this.#find(".bot-description").textContent = bot.description;
    this.#find(".conversations").setAttribute("aria-label", `Conversations with ${bot.name}`);
  }
}

class ConversationItem {
  element = template("conversation-item");
  #page;
  #conversation;

  constructor(page) {
    this.#page = page;
    this.#find(".delete").addEventListener("click", ({ detail }) => this.#page.remove(this.#conversation, detail === 0));
    this.#find("a").addEventListener("click", () => this.#page.open(this.#conversation));
    this.#find("a").addEventListener("keydown", ({ key }) => { if (key === "Delete") this.#page.remove(this.#conversation, true); });
    this.#find(".restore").addEventListener("click", () => this.#page.restore(this.#conversation));
  }

  #find(selector) {
    return this.element.querySelector(selector);
  }

  show(conversation, isChosen) {
    this.#conversation = conversation;
    const { id, bot, state, deleted } = conversation;
    this.day = dayOf(conversation.changed);
    const title = bot.gone ? `${bot.name}: ${conversation.title}` : conversation.title;
    this.element.classList.toggle("deleted", Boolean(deleted));
    const link = this.#find("a");
    link.href = addressOf(bot, id);
    link.title = title; // which may be cut
    link.querySelector(".title").textContent = title;
    choose(link, isChosen);
    showState(link, state);
    this.#find(".delete").setAttribute("aria-label", `Delete “${title}”`);
  }
}

// addressOf returns the address of a bot, or of one of its conversations.
export function addressOf(bot, id) {
  if (bot.gone && !id) return "#bots";
  return "#" + new URLSearchParams({ ...(!bot.gone && { bot: bot.slug }), ...(id && { chat: id }) });
}

// dayOf names the day of a time: the more precisely, the less time has passed.
function dayOf(time) {
  const days = Math.ceil((new Date().setHours(0, 0, 0, 0) - time) / 86_400_000);
  if (days < 2) return days < 1 ? "Today" : "Yesterday";
  return new Date(time).toLocaleDateString("en", days < 7 ? { weekday: "long" } : { month: "long", year: "numeric" });
}

function choose(link, isChosen) {
  if (isChosen) link.setAttribute("aria-current", "page");
  else link.removeAttribute("aria-current");
}

const states = { answering: "is answering", unseen: "has a new answer" };

function showState(link, state = "") {
  link.dataset.state = state;
  link.querySelector(".state").textContent = states[state] ?? "";
}
