// The versions of a conversation. Where it branches, a turn has those that are not on
// show: {before, after}, the older and the newer ones, each an array of that turn's
// replacement and all that follows it. A turn that has been replaced has seen: when it was
// on show last.

// everyTurn yields the turns of all versions.
export function* everyTurn(turns) {
  for (const turn of turns) {
    yield turn;
    for (const version of [...(turn.before ?? []), ...(turn.after ?? [])]) yield* everyTurn(version);
  }
}

// branch returns the turns with a new version from a place on: a turn.
export function branch(turns, at, turn) {
  return [...turns.slice(0, at), Object.assign(turn, { before: versionsAt(turns, at), after: [] })];
}

// switchTo returns the turns with another version from a place on.
export function switchTo(turns, at, index, versions = versionsAt(turns, at)) {
  const [first, ...rest] = versions[index];
  return [...turns.slice(0, at), { ...first, before: versions.slice(0, index), after: versions.slice(index + 1) }, ...rest];
}

// versionWith returns the turns of a version that is wanted, or null. If the version on
// show is one, it is that.
export function versionWith(turns, isWanted) {
  if (isWanted(turns)) return turns;
  for (const [at, { before = [], after = [] }] of turns.entries()) {
    for (let index = 0; index <= before.length + after.length; index++) {
      const all = versionsAt(turns, at);
      const found = index !== before.length && versionWith(all[index], (rest) => isWanted([...turns.slice(0, at), ...rest]));
      if (found) return switchTo(turns, at, index, all.with(index, found));
    }
  }
  return null;
}

function versionsAt(turns, at) {
  const [{ before = [], after = [], ...turn }, ...rest] = turns.slice(at);
  return [...before, [{ ...turn, seen: Date.now() }, ...rest], ...after];
}

// choicesOf returns, for the question of a turn and for its answer, the indexes of all
// versions to choose from and the place of the one on show among them. Of another question,
// that is the version that was on show last.
export function choicesOf({ question, before = [], after = [] }) {
  const turns = [...before.map(([turn]) => turn), { question, seen: Infinity }, ...after.map(([turn]) => turn)];
  const latest = new Map(); // by question, in the order in which they were asked first
  turns.forEach((turn, i) => {
    const seen = turns[latest.get(turn.question)]?.seen ?? 0;
    if ((turn.seen ?? 0) >= seen) latest.set(turn.question, i);
  });
  const among = (all) => ({ all, shown: all.indexOf(before.length) });
  return {
    question: among([...latest.values()]),
    answer: among([...turns.keys()].filter((i) => turns[i].question === question)),
  };
}
