// The list of bots, with the conversations of each below it.

import { drawAvatar } from "./view.js";
import { arrange } from "./elements.js";

const template = (id) => document.getElementById(id).content.firstElementChild.cloneNode(true);

// The number of conversations that are listed of a bot that is not on show.
const few = 3;

export class BotList {
  #element;
  #page; // {remove(conversation), restore()}
  #bots = new Map(); // views by the bot's uid

  constructor(element, page) {
    this.#element = element;
    this.#page = page;
  }

  // draw shows the bots and their conversations {id, bot, title, state}, one of
  // which may be chosen. A conversation that was just deleted keeps its place, with
  // an Undo button, until the next one is deleted.
  draw(bots, conversations, { bot, id } = {}) {
    const views = new Map(bots.map((each) => [each.uid, this.#bots.get(each.uid) ?? new BotView(this.#page)]));
    this.#bots = views;
    for (const each of bots) {
      views.get(each.uid).show(each, conversations.filter((conversation) => conversation.bot === each.uid), each.uid === bot, id);
    }
    arrange(this.#element, [...views.values()].map(({ element }) => element));
  }
}

class BotView {
  element = template("bot-item");
  #page;
  #looks;
  #conversations = new Map(); // views by id
  #all = false; // whether all conversations are listed

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

  show(bot, conversations, isChosen, chosen) {
    const looks = JSON.stringify(bot);
    if (looks !== this.#looks) this.#draw(bot);
    this.#looks = looks;
    choose(this.#find(".bot"), isChosen);
    showState(this.#find(".bot"), conversations.find(({ state }) => state === "answering")?.state ?? conversations.find(({ state }) => state)?.state);
    this.#conversations = new Map(conversations.map((each) => [each.id, this.#conversations.get(each.id) ?? new ConversationItem(this.#page)]));
    for (const each of conversations) this.#conversations.get(each.id).show(each, addressOf(bot, each.id), each.id === chosen);
    this.isChosen = isChosen;
    this.#arrange();
  }

  #arrange() {
    const items = [...this.#conversations.values()].map(({ element }) => element);
    const isCut = !this.#all && !this.isChosen && items.length > few + 1;
    arrange(this.#find(".conversations"), isCut ? items.slice(0, few) : items);
    this.#find(".conversations").hidden = items.length === 0;
    this.#find(".all").hidden = !isCut;
    this.#find(".all").textContent = `Show all ${items.length}`;
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
    this.#find(".delete").addEventListener("click", () => this.#page.remove(this.#conversation));
    this.#find(".restore").addEventListener("click", () => this.#page.restore());
  }

  #find(selector) {
    return this.element.querySelector(selector);
  }

  show(conversation, address, isChosen) {
    this.#conversation = conversation;
    const { title, state, deleted } = conversation;
    this.element.classList.toggle("deleted", Boolean(deleted));
    const link = this.#find("a");
    link.href = address;
    link.querySelector(".title").textContent = title;
    choose(link, isChosen);
    showState(link, state);
    this.#find(".delete").setAttribute("aria-label", `Delete “${title}”`);
  }
}

// addressOf returns the address of a bot, or of one of its conversations.
export function addressOf(bot, id) {
  return "#" + new URLSearchParams({ bot: bot.slug, ...(id && { chat: id }) });
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
