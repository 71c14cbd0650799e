// What a person reads when something went wrong.

// explain turns an error into a title, and advice where there is some.
export function explain(error) {
  if (error.kind === "unreachable") {
    return {
      title: "The server cannot be reached.",
      advice: "Check your connection, and that the server is running. Then try again.",
    };
  }
  if (error.kind === "cut") {
    return {
      title: "The connection broke off.",
      advice: "This answer is incomplete.",
    };
  }
  if (error.kind === "failed") {
    return {
      title: "The bot stopped in the middle of its answer.",
      advice: [sentence(known.get(error.detail)?.cause ?? error.detail), "This answer is incomplete."].join(" "),
    };
  }
  if (error.kind === "refused") return explainRefusal(error);
  return { title: "Something went wrong on this page.", advice: "Load the page again." };
}

// known has words for the service's own texts. Any other text comes from
// whoever runs the service, for people to read, and is shown as it is.
const known = new Map(Object.entries({
  "Bot not found": {
    title: "This bot is not available any more.",
    advice: "Choose another one.",
  },
  "Request body too large": {
    title: "The conversation has become too long for this server.",
    advice: "Start a new one, or send a shorter message.",
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
    advice: "It is not your fault. Try again; if it goes on, tell whoever runs the server.",
  },
}));

function explainRefusal({ status, detail, problems, retryAfter }) {
  if (problems.length > 0) {
    return {
      title: "The server could not use this message.",
      advice: problems.map(({ loc, msg }) => `${loc.join(" › ")}: ${msg}`).join("\n"),
    };
  }
  const { title, advice } = known.get(detail) ?? {
    title: sentence(detail) || `The server answered with an error (status ${status}).`,
  };
  return { title, advice: [advice, wait(retryAfter)].filter(Boolean).join(" ") };
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
