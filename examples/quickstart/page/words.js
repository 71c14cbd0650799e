// The texts that users read when something has failed.

// explain turns an error into a title and, for some errors, advice.
export function explain(error) {
  if (error.kind === "unreachable") {
    return {
      title: "The server cannot be reached.",
      advice: "Check your connection, and that the server is running. Then try again.",
    };
  }
  if (error.kind === "incomplete") return { title: "The connection was lost." };
  if (error.kind === "failed") {
    return {
      title: "The bot stopped in the middle of its answer.",
      advice: sentence(known.get(error.detail)?.cause ?? error.detail),
    };
  }
  if (error.kind === "rejected") return explainRejection(error);
  return { title: "Something went wrong on this page.", advice: "Load the page again." };
}

// isTooLong reports whether a request was rejected because the conversation is too
// long for the service or for the model.
export function isTooLong({ status, detail, problems = [] }) {
  return status === 413 || ([400, 422].includes(status) && /too[ _]long/i.test(detail + problems.map(({ msg }) => msg)));
}

// troubleWith describes what is wrong with a turn: its failure, or a missing or
// incomplete answer. It returns null if nothing is wrong.
export function troubleWith({ answer, state, stopped, failure }, isLast) {
  if (failure && isLast) {
    const rest = answer && (state === "whole" ? "The earlier answer stays." : failure.advice?.includes("answer is incomplete") ? "" : incomplete);
    return { ...failure, advice: [failure.advice, waitFor(failure), rest].filter(Boolean).join(" ") };
  }
  if (!isLast || state === "whole" || (stopped && answer)) return null;
  return { title: answer ? incomplete : "This message has no answer yet.", advice: "", requestID: "" };
}

// noteOn returns a note for a turn without trouble that needs an explanation.
export function noteOn({ answer, state, leftOut, stopped, failure }) {
  if (state === "whole" && !answer) return "The answer is empty.";
  if (!answer) return `${failure?.title ?? "No answer."} This message is no longer sent to the bot.`;
  const note = state === "whole" ? "" : stopped ? "Stopped" : incomplete;
  return leftOut ? `${note} No longer sent to the bot.`.trim() : note;
}

// noteOnVersion says of the newest version of an answer where the messages are that
// followed an earlier one.
export function noteOnVersion({ question, before = [], after = [] }) {
  const isLeft = after.length === 0 && before.some(([turn, ...followed]) => followed.length > 0 && turn.question === question);
  return isLeft ? "Another version begins here: ‹ brings back the messages that followed." : "";
}

// waitFor says how long to wait before another attempt. A wait below 5 s is not
// counted down in words: it would end before anybody has read them.
function waitFor({ until, retryAfter }) {
  if (!retryAfter) return "";
  return wait(retryAfter < 5 ? retryAfter : secondsUntil(until));
}

export function secondsUntil(time) {
  return Math.max(0, Math.ceil((time - Date.now()) / 1000));
}

const incomplete = "This answer is incomplete.";
const shorter = "Edit the message to make it shorter, or start a new chat.";

// known has explanations for the texts of botapi. Any other text comes from the
// application, is written for users, and is shown as it is.
const known = new Map(Object.entries({
  "Bot not found": {
    title: "This bot is not available any more.",
    advice: "Choose another one.",
  },
  "Request body too large": {
    title: "This is too long for the server.",
    advice: shorter,
  },
  "Another chat has this Idempotency-Key": {
    title: "This answer cannot be continued.",
    advice: "The conversation has changed. Try again.",
  },
  "Answer not found": {
    title: "The server does not have this answer any more.",
    advice: "Try again.",
  },
  "Too many chats in progress": {
    title: "The server is busy with other conversations.",
  },
  "Too many chats in progress for this key": {
    title: "Too many conversations are going on with your key.",
    advice: "Wait for another answer to end, or stop it.",
  },
  "The answer took too long": {
    title: "The bot took too long to answer.",
    cause: "It took too long.",
    advice: "Try again, perhaps with a simpler question.",
  },
  "Internal Server Error": {
    title: "Something went wrong on the server.",
    cause: "Something went wrong on the server.",
    advice: "This is not your fault. Try again. If it keeps happening, tell the server's operator.",
  },
}));

function explainRejection(error) {
  const { status, detail, problems } = error;
  if (problems.length > 0) {
    return isTooLong(error) ? { title: "This is too long for the bot.", advice: shorter } : {
      title: "The server could not use this message.",
      advice: problems.map(({ loc, msg }) => `${loc.join(" › ")}: ${msg}`).join("\n"),
    };
  }
  return known.get(detail) ?? { title: sentence(detail) || `The server answered with an error (status ${status}).` };
}

function wait(seconds) {
  if (!seconds) return "";
  if (seconds === 1) return "Try again in a second.";
  if (seconds < 90) return `Try again in ${seconds} seconds.`;
  if (seconds < 90 * 60) return `Try again in ${Math.round(seconds / 60)} minutes.`;
  return `Try again in ${Math.round(seconds / 3600)} hours.`;
}

function sentence(text) {
  return text && !/[.!?…]$/.test(text) ? text + "." : text;
}
