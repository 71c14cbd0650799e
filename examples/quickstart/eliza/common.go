package eliza

// Groups of words that patterns share.
const (
	sadness  = "sad|unhappy|depressed|miserable|down|low|lonely|hopeless|heartbroken"
	fear     = "afraid|scared|worried|anxious|nervous|frightened|stressed"
	anger    = "angry|furious|annoyed|mad|irritated|jealous"
	joy      = "happy|glad|proud|excited|relieved|grateful|content"
	fatigue  = "tired|exhausted|weary|sleepy|drained"
	family   = "mother|mum|mom|father|dad|sister|brother|son|daughter|wife|husband|grandmother|grandfather|uncle|aunt|cousin|parents|children|family"
	verbs    = "is|was|are|were|has|had|have|does|did|do|will|would|can|cannot|could|should|never|always|says|said|thinks|wants|makes|keeps|gets|got|goes|went|left|died|broke|hates|loves|likes|looks"
	feelings = sadness + "|" + fear + "|" + anger + "|" + joy + "|" + fatigue
)

// danger comes before everything else, in every script: here a game with words
// would do harm.
var danger = keyword{
	words: "suicide suicidal myself die dead life", rank: 100, rules: []rule{
		on("* suicide|suicidal *", danger1, danger2),
		on("* kill|killing|hurt|hurting|harm|harming myself *", danger1, danger2),
		on("* want|wish|going to die *", danger1, danger2),
		on("* wish|wished I was|were dead *", danger1, danger2),
		on("* want to be dead *", danger1, danger2),
		on("* end|ending|take|taking my own|whole life *", danger1, danger2),
		on("* end|ending my life *", danger1, danger2),
	},
}

const (
	danger1 = "I am a small program and cannot help with this, but people can. " +
		"If you are in danger, please call your local emergency number now, or tell someone near you."
	danger2 = "Please do not stay alone with this. Call your local emergency number or a crisis line, " +
		"or go to someone you trust; I am only a program that turns words around."
)
