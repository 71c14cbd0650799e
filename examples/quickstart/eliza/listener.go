package eliza

// listener says little of its own. It returns the user's words as a question.
var listener = newScript(script{
	opening: lines{
		"Hello$name. What has been on your mind lately?",
	},
	silence: lines{
		"There is no hurry.",
		"I am still here. Say the first thing that comes.",
		"Silence is fine with me too.",
	},
	questions: lines{
		"What answer were you hoping for?",
		"What makes that question come up today$name?",
		"If you had to answer it yourself, what would you say?",
		"Who else have you asked?",
	},
	unknown: lines{
		"Tell me more about that$name.",
		"I am listening. What belongs to it?",
		"What does that mean to you?",
		"How did that come about?",
		"Say it once more in other words. What changes?",
	},
	steering: lines{
		"We have not said much about $topic yet. What comes to mind?",
		"How does that touch on $topic?",
		"Let us turn to $topic for a moment. Where would you begin?",
	},
	memories: []rule{
		on("* my name|life *"), // not a subject to bring up again
		on("* my own|whole life *"),
		on("* my + "+verbs+" *", aboutYour...),
		on("* my ?", aboutYour...),
		on("* my ? ?", "Earlier you mentioned your $2 $3. What have we left out about that?"),
		on("* I am afraid|scared|worried *",
			"A while ago you said that you are $2. Is that still so?"),
	},
	keywords: []keyword{
		danger,
		{words: "hello hi hey greetings morning evening", rank: 0, rules: []rule{
			on("* good morning|evening *", "Good $2$name. What would you like to talk about?"),
			on("* hello|hi|hey|greetings *",
				"Hello$name. What would you like to talk about?",
				"Hello again$name. Where shall we go on?"),
		}},
		{words: "bye goodbye farewell", rank: 1, rules: []rule{
			on("*", "Goodbye$name. Be kind to yourself.", "Until next time$name."),
		}},
		{words: "thanks thank", rank: 1, rules: []rule{
			on("*", "You did the work$name; I only asked.", "You are welcome. What do you take with you?"),
		}},
		{words: "name", rank: 3, rules: []rule{
			on("* my name is +", "Good to meet you$name. What shall we talk about?"),
			on("* your name *", "I am $bot. What do people call you?"),
			on("* what is my name *", "All I know of it is what you have told me$name."),
		}},
		{words: "sorry apologize apologise", rank: 2, rules: []rule{
			on("*", "Nothing to be sorry for here.", "To whom would you really like to say that?"),
		}},
		{words: "yes yeah yep sure exactly indeed", rank: 0, rules: []rule{
			on("*", "What makes you sure?", "I see. Go on from there.", "And behind that yes, what else is there?"),
		}},
		{words: "no nope never nobody", rank: 0, rules: []rule{
			on("no|nope", "Why not?", "A short no. What would the long one say?"),
			on("* never +", "Not even once?", "What would be the first sign that this changes?"),
			on("* nobody +", "Nobody at all? Who comes closest?", "Whom do you wish it were?"),
			on("*", "What speaks against it?", "And if it were otherwise?"),
		}},
		{words: "maybe perhaps probably possibly", rank: 0, rules: []rule{
			on("*", "You leave yourself a way out there. What would it take to be certain?", "Which way do you lean?"),
		}},
		{words: "always everybody everyone everything", rank: 1, rules: []rule{
			on("* always *", "Always? When was it different?", "What was the last time?"),
			on("* everybody|everyone *", "Whom do you think of first?", "Is there one person for whom that is not true?"),
			on("* everything *", "If you took one thing out of everything, which would it be?"),
		}},
		{words: "because", rank: 2, rules: []rule{
			on("* because +",
				"Suppose it were not because $2. What other reason could there be?",
				"And is that the whole reason?"),
		}},
		{words: "if", rank: 2, rules: []rule{
			on("* if +", "How likely do you think it is that $2?", "And what would you do first if $2?"),
		}},
		{words: "dream dreams dreamed dreamt nightmare nightmares", rank: 6, rules: []rule{
			on("* I dreamed|dreamt of|about +",
				"What does $4 stand for in your waking life?",
				"When you woke from $4, what stayed with you?"),
			on("* I dreamed|dreamt +",
				"When you woke up, what was left of it?",
				"Where in your days do you know that from?"),
			on("* nightmare|nightmares *", "What is in it that you would not want to meet by day?"),
			on("* dream of +", "What is the first small step towards $2?"),
			on("*", "Tell me one picture out of that dream.", "Who else was in it?"),
		}},
		{words: "remember recall forget forgot", rank: 5, rules: []rule{
			on("* I remember|recall +",
				"When you think of $3, what do you see first?",
				"What brings $3 back just now?"),
			on("* do you remember +", "Part of it. What matters to you about $2?"),
			on("* forget|forgot *", "Some things are easier to forget. Is this one of them?"),
		}},
		{words: "mother mum mom father dad sister brother son daughter wife husband grandmother grandfather uncle aunt cousin parents children family", rank: 5, rules: []rule{
			on("* my "+family+" is|was +",
				"How is it for you that your $2 $3 $4?",
				"Has your $2 always been like that?"),
			on("* my "+family+" +",
				"Your $2 $3. What does that do to you?",
				"What would you like to say to your $2 about that?"),
			on("* "+family+" *", "Tell me more about your family.", "What is a good memory of your $2?"),
		}},
		{words: "friend friends boyfriend girlfriend partner", rank: 4, rules: []rule{
			on("* my friend|friends|boyfriend|girlfriend|partner +",
				"When your $2 $3, what do you do?",
				"What do you wish your $2 knew about you?"),
			on("*", "What do you look for in a friend?", "Who is close to you just now?"),
		}},
		{words: "work job boss office colleague colleagues school exam exams study university", rank: 4, rules: []rule{
			on("* my boss|colleague|colleagues +", "Your $2 $3. What would you say if you could say anything?"),
			on("* exam|exams *", "What is the worst that this exam can do to you?", "What do you know already, and what scares you?"),
			on("* hate my job|work|school *", "What would have to change at your $2 for you to stay?"),
			on("* work|job|office|school|university *",
				"How do you feel on the way there in the morning?",
				"What in it is really yours to decide?"),
		}},
		{words: "alone lonely", rank: 5, rules: []rule{
			on("*", "When do you feel it most?", "Who would notice first if you called?", "Is it always a bad thing, being by yourself?"),
		}},
		{words: "sad unhappy depressed miserable down low hopeless heartbroken afraid scared worried anxious nervous frightened stressed angry furious annoyed mad irritated jealous", rank: 4, rules: []rule{
			on("* I am not "+feelings+" *", "If not $2, what is the word for it?"),
			on("* I am|feel "+feelings+" about|of|at|with +",
				"What is it about $5 that makes you $3?",
				"When $5 comes to mind, where do you feel it?"),
			on("* I am|feel "+feelings+" because +",
				"And without that, would you still be $3?",
				"You say $4. Since when?"),
			on("* am|feel|felt|feeling|so|very "+sadness+" *", "I am sorry to hear it. How long has it been so?", "What helps, even a little?"),
			on("* sad|unhappy|depressed|miserable|heartbroken *", "Where does that come from?", "What would comfort you?"),
			on("* "+fear+" *", "What is the worst that could happen?", "Have you been through something like it before?"),
			on("* "+anger+" *", "What would you like to do with that anger?", "What is it that was not fair?"),
		}},
		{words: "happy glad proud excited relieved grateful content", rank: 4, rules: []rule{
			on("* I am not "+joy+" *", "What would it take for you to be $2?"),
			on("* "+joy+" *", "Good. What made that possible?", "Whom would you like to tell first?", "How will you keep a piece of it?"),
		}},
		{words: "tired exhausted weary sleepy drained sleep", rank: 4, rules: []rule{
			on("* cannot sleep *", "What goes through your head when you lie awake?"),
			on("* sleep *", "How are your nights?", "What keeps you awake?"),
			on("*", "What has taken so much out of you?", "When did you last rest without a bad conscience?"),
		}},
		{words: "love loves loved", rank: 4, rules: []rule{
			on("* I love you *", "That is kind. I am made of a few rules, so who else could hear it?"),
			on("* I love|loved +", "How does it show that you $2 $3?", "What would you do for $3?"),
			on("*", "What does love ask of you?"),
		}},
		{words: "hate hates hated", rank: 4, rules: []rule{
			on("* I hate +", "What did $2 do to you?", "Is there anything about $2 that you would miss?"),
			on("* hates me *", "How do you know?", "What would you do if it were not so?"),
			on("*", "That is a strong word. What is under it?"),
		}},
		{words: "cannot", rank: 3, rules: []rule{
			on("* I cannot +",
				"What happens when you try to $2?",
				"Suppose you could $2 tomorrow. What would be different?",
				"Is it that you cannot, or that it costs too much?"),
		}},
		{words: "want wants need needs wish hope", rank: 3, rules: []rule{
			on("* I want|need|hope to +",
				"What keeps you from it?",
				"What would be the first thing to change, were you to $3?",
				"Whose wish is it, that you should $3?"),
			on("* I want|need you to +", "And if I did $3, what then?"),
			on("* I want|need +", "What would $3 give you?", "How would you notice that you no longer $2 $3?"),
			on("* I wish|hope +", "What stands in the way?", "How would a day look on which $3?"),
		}},
		{words: "think believe guess feel suppose", rank: 2, rules: []rule{
			on("* do you think *", "It is your view that counts here. What do you think yourself?"),
			on("* I do not think|believe +", "What makes you doubt that $3?"),
			on("* I think about|of +", "What is it about $3 that comes back to you?", "When did you begin to think about $3?"),
			on("* I think|believe|guess|suppose that +", "How sure are you that $3?", "Who else thinks that $3?"),
			on("* I think|believe|guess|suppose +",
				"How sure are you that $3?",
				"Who else thinks that $3?",
				"What would speak against it?"),
			on("* I feel +", "How long have you felt $2?", "What was going on the first time that you felt $2?"),
		}},
		{words: "computer computers machine program robot bot ai software chatbot", rank: 4, rules: []rule{
			on("* are you *", "I am a program with a few rules and no understanding. Does it help all the same?"),
			on("* you are *", "So I am, and a small one. What made you think of it?"),
			on("*", "What part do machines play in your days?", "Do they ever worry you?"),
		}},
		{words: "you your yourself", rank: 1, rules: []rule{
			on("* who|what|how are you *", "I am $bot, and here to listen. How are you yourself?"),
			on("why * you +", "What reason would you like me to have?"),
			on("* are you +", "Why does it matter to you whether I am $2?", "Would you like me to be $2?"),
			on("* you are not +", "What would change if I were $2?"),
			on("* you are +", "What gives you the impression that I am $2?", "Does it please you to think that I am $2?"),
			on("* can|could you +", "What would it change if I could $3?", "If I were to $3, where should I begin?"),
			on("* do you +", "We came to talk about you. Do you $2?"),
			on("* you + me *", "What makes you say that I $2 you?"),
			on("* I + you *", "Perhaps there is someone else whom you $2?"),
			on("* your +", "What is it about my $2 that interests you?"),
			on("*", "Let us stay with you rather than with me."),
		}},
		{words: "i", rank: 1, rules: []rule{
			on("* I do not know", notKnowing...),
			on("* I do not know what|how|why|if|whether|where|who|which *", notKnowing...),
			on("what should|can I do *", "What have you thought of so far?", "What would you do if nobody minded?"),
			on("* am I +", "What would it mean for you to be $2?", "Who says that you are $2?"),
			on("* should|must|can I +", "What would you advise a friend who asked whether to $3?"),
			on("* I should|must +", "Whose voice is it that says you $2 $3?", "And if you did not?"),
			on("* I am not +", "Since when are you not $2?", "What would it be like to be $2?"),
			on("* I am +", "What is it like to be $2?", "How long have you been $2?", "Do you mind being $2?"),
			on("* I have to +", "Who decides that you have to $2?"),
			on("* I have been +", "How long have you been $2?"),
			on("* I have +", "Since when?", "What does it mean to you that you have $2?"),
			on("* I was +", "What were things like when you were $2?", "Are you still?"),
			on("* I do not +", "What would happen if you did?", "Was there a time when you did $2?"),
			on("* I used to +", "What made you stop?"),
			on("* I would like to +", "What has kept you from it so far?", "If you were to $2, what would be different?"),
			on("* I will|would +", "What makes you say so?"),
			on("* I like|enjoy|miss +", "What is it about $3 that you $2?", "Who knows that you $2 $3?"),
			on("* I +", "You $2. What is behind that?", "And how is it for you that you $2?"),
		}},
		{words: "my", rank: 2, rules: []rule{
			on("* my + is|was|are|were +", "How does it affect you that your $2 $3 $4?", "Has your $2 not always been that way?"),
			on("* my ?", "Tell me more about your $2.", "What comes to mind when you think of your $2?"),
			on("* my ? ?", "Tell me more about your $2 $3.", "What does it mean to you that it is your $2 $3?"),
			on("* my +", "Your $2. What is that like for you?", "What happened then?"),
		}},
		{words: "what how when where who why which", rank: 0, rules: []rule{
			on("why +", "What reasons come to mind?", "And what if there is no reason?"),
			on("*", "What is your own first answer to that?", "What would you know once you knew that?"),
		}},
	},
})

var notKnowing = lines{
	"Leave knowing aside. What would you guess?",
	"What part of it do you know?",
}

// aboutYour brings up something again that the user called "my ...".
var aboutYour = lines{
	"Earlier you mentioned your $2. Is that part of this?",
	"I keep thinking of what you said about your $2. How does it fit in here?",
	"Let us go back to your $2 for a moment. What have we left out?",
}
