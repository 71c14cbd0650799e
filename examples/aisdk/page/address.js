// The address of the page, #chat=CHAT&bot=BOT&key=KEY: a reload finds the chat and its bot again.
import { generateId } from "ai";
import { useEffect, useLayoutEffect, useState } from "react";

const read = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

// headers has the key that the address has now.
export const headers = () => ({ Authorization: `Bearer ${read().key}` });

// useAddress returns what the address says, and a function that changes a part of it. What a new
// address leaves out stays as it was: the link that the service prints has only the key.
export function useAddress() {
  const [address, setAddress] = useState(() => ({ chat: generateId(), bot: "mira", ...read() }));
  const change = (part) => setAddress((address) => ({ ...address, ...part }));
  useLayoutEffect(() => history.replaceState(null, "", `#${new URLSearchParams(address)}`), [address]); // before a request
  useEffect(() => {
    const follow = () => change(read());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return [address, change];
}
