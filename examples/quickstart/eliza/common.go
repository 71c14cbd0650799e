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

// danger has the highest rank in every script: a person in danger needs help,
// not a game with words.
var danger = keyword{
	words: "suicide suicidal myself die dead life live", rank: 100, rules: []rule{
		on("* suicide|suicidal *", seekHelp...),
		on("* kill|killing|hurt|hurting|harm|harming myself *", seekHelp...),
		on("* want|wish|going to die *", seekHelp...),
		on("* wish|wished I was|were dead *", seekHelp...),
		on("* want to be dead *", seekHelp...),
		on("* not want to live *", seekHelp...),
		on("* end|ending|take|taking my own|whole life *", seekHelp...),
		on("* end|ending my life *", seekHelp...),
	},
}

var seekHelp = lines{
	"I am a small program and cannot help with this, but people can. " +
		"If you are in danger, please call your local emergency number now, or tell someone near you.",
	"Please do not stay alone with this. Call your local emergency number or a crisis line, " +
		"or go to someone you trust; I am only a program that turns words around.",
}
