// Coming back for an answer whose connection is lost.
import { DefaultChatTransport } from "ai";
import { useEffect } from "react";

const endedEarly = "The stream has ended before the answer";

// A Transport also takes a stream for lost that ends before its answer: a proxy may end a
// response normally when it has lost the service.
export class Transport extends DefaultChatTransport {
  processResponseStream(body) {
    let isComplete = false;
    return super.processResponseStream(body).pipeThrough(new TransformStream({
      transform(part, stream) {
        isComplete ||= part.type === "finish" || part.type === "error";
        stream.enqueue(part);
      },
      flush(stream) {
        if (!isComplete) stream.enqueue({ type: "error", errorText: endedEarly }); // to throw would lose parts before it
      },
    }));
  }
}

// isLost reports whether the service could not be reached, or not be asked for an answer that
// it may have. Each browser has its own texts for lost connections, but all throw a TypeError.
const isLost = (error) =>
  error instanceof TypeError || error?.message === endedEarly || (error?.isRetryable && error.url.endsWith("/stream"));

// How long the service keeps an answer that nobody reads, and a complete one after that: Alone
// and Keep of its resume.Settings.
const kept = 3 * 60_000;

// useReturn calls resumeStream of useChat until a lost answer arrives, or the service says that
// it has none. It returns whether the connection is lost.
export function useReturn({ status, error, resumeStream }) {
  const lost = status === "error" && isLost(error);
  useEffect(() => (lost ? keepTrying(resumeStream) : undefined), [lost]);
  return Boolean(lost);
}

// keepTrying calls a function after one second, then less and less often, and immediately when
// the network is back or a person looks at the page. It returns a function that ends that. Each
// call takes the place of the one before, should it still wait for a response.
function keepTrying(call) {
  const until = Date.now() + kept;
  let delay = 1000;
  let timer = setTimeout(attempt, delay);
  function attempt() {
    call();
    clearTimeout(timer);
    delay = Math.min(2 * delay, 15_000);
    if (Date.now() < until) timer = setTimeout(attempt, delay);
  }
  function attemptNow() {
    if (document.visibilityState !== "visible") return;
    delay = 1000;
    attempt();
  }
  addEventListener("online", attemptNow);
  document.addEventListener("visibilitychange", attemptNow);
  return () => {
    clearTimeout(timer);
    removeEventListener("online", attemptNow);
    document.removeEventListener("visibilitychange", attemptNow);
  };
}
