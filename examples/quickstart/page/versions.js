// The versions of a conversation. Where it branches, a turn has those that are not on
// show: {before, after}, the older and the newer ones, each an array of that turn's
// replacement and all that follows it.

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

// versionWith returns the turns of a version in which one of them is wanted, or null. If
// there is one in the version on show, that is the version.
export function versionWith(turns, isWanted) {
  if (turns.some(isWanted)) return turns;
  for (const [at, { before = [], after = [] }] of turns.entries()) {
    for (let index = 0; index <= before.length + after.length; index++) {
      const all = versionsAt(turns, at);
      const found = index !== before.length && versionWith(all[index], isWanted);
      if (found) return switchTo(turns, at, index, all.with(index, found));
    }
  }
  return null;
}

function versionsAt(turns, at) {
  const [{ before = [], after = [], ...turn }, ...rest] = turns.slice(at);
  return [...before, [turn, ...rest], ...after];
}

// choicesOf returns, for the question of a turn and for its answer, the indexes of all
// versions to choose from and the place of the one on show among them.
export function choicesOf({ question, before = [], after = [] }) {
  const questions = [...before.map(([turn]) => turn.question), question, ...after.map(([turn]) => turn.question)];
  const among = (isChoice) => {
    const all = [...questions.keys()].filter((i) => i === before.length || isChoice(i));
    return { all, shown: all.indexOf(before.length) };
  };
  return {
    question: among((i) => questions[i] !== question && questions.indexOf(questions[i]) === i),
    answer: among((i) => questions[i] === question),
  };
}
