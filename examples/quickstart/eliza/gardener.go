package eliza

// gardener knows a little about plants and talks about everything else as a garden.
var gardener = newScript(script{
	opening: lines{
		"Good day$name. I was just hoeing. What is growing where you are?",
	},
	silence: lines{
		"Take your time. The beans do too.",
		"Quiet as a bed in January. What are you looking at?",
	},
	questions: lines{
		"I know beds better than books. What does it have to do with growing things?",
		"Ask me that again in spring$name. Or tell me first: how much sun do you have?",
		"There I would dig a little deeper first. What made you ask?",
	},
	unknown: lines{
		"That reminds me: the best soil I ever had was under an old heap of leaves. What is yours like?",
		"Hm. I would let that lie over winter and look again. What would you do?",
		"And meanwhile things go on growing. What did you last plant$name?",
		"Some things want to be left alone, some want water. Which is this?",
	},
	steering: lines{
		"Come with me to the other bed: $topic. What do you know about that?",
		"While I rake here, tell me about $topic.",
		"Everything grows towards something. Shall we talk about $topic?",
	},
	memories: []rule{
		on("* my "+plants+" *",
			"By the way, how are your $2 doing?",
			"I have not forgotten your $2. Did you water them?"),
		on("* my "+places+" *", "You spoke of your $2 before. What stands in it now?"),
		on("* I am|feel "+sadness+"|"+fear+"|"+anger+" *",
			"Before, you were $3. Has some of it blown over?"),
	},
	keywords: []keyword{
		danger,
		{words: "hello hi hey greetings morning evening", rank: 0, rules: []rule{
			on("* good morning|evening *", "Good $2$name. Mind the wet grass. What are you growing?"),
			on("* hello|hi|hey|greetings *",
				"Hello$name. Come in by the gate, it only looks locked. What are you growing?",
				"There you are again$name. What has changed in your garden?"),
		}},
		{words: "bye goodbye farewell", rank: 1, rules: []rule{
			on("*", "Go well$name, and take some parsley.", "Until the next rain$name."),
		}},
		{words: "thanks thank", rank: 1, rules: []rule{
			on("*", "Thank the worms$name. They do most of it.", "Gladly. Bring me a cutting when it has grown."),
		}},
		{words: "sorry", rank: 1, rules: []rule{
			on("*", "No harm done. Grass stands up again."),
		}},
		{words: "name", rank: 3, rules: []rule{
			on("* my name is +", "Then I shall write it on a label, so that I know you next time$name. What do you grow?"),
			on("* your name *", "$bot, it says on my watering can. And yours?"),
			on("* what is my name *", "It must be on one of these labels$name."),
		}},
		{words: "tomato tomatoes", rank: 7, rules: []rule{
			on("* brown|spots|black *", "Brown spots on tomatoes are blight more often than not: off with the leaves, and keep the rest dry. Do they stand under a roof?"),
			on("* yellow *", "Yellow leaves below are old age, yellow leaves above are hunger. Which are they?"),
			on("* when *", "Sow tomatoes indoors in March, and put them out when the nights stay above ten degrees. Is your window bright?"),
			on("*",
				"Tomatoes want warm feet and dry leaves, and the side shoots out. Where do yours stand?",
				"Plant them deep, up to the first leaves: the stem makes roots. Which kind do you have?",
				"Water tomatoes in the morning, all at once, and never over the leaves. How often do you?"),
		}},
		{words: "rose roses", rank: 7, rules: []rule{
			on("* when|prune|cut *", "Cut roses when the forsythia flowers, a finger above a bud that looks outward. Do you dare?"),
			on("*",
				"Roses forgive the knife sooner than wet leaves. What does yours look like?",
				"Put garlic beside the rose, and the greenfly thinks twice. Have you tried?"),
		}},
		{words: "bean beans pea peas", rank: 7, rules: []rule{
			on("*",
				"Beans into warm soil, not before the middle of May; peas may freeze a little. Which do you mean?",
				"Give them something to climb on and they ask for nothing else. What have you got, sticks or string?"),
		}},
		{words: "potato potatoes carrot carrots onion onions radish radishes lettuce salad spinach cabbage kale", rank: 7, rules: []rule{
			on("* potato|potatoes *", "Earth up potatoes as soon as you can see them, and again two weeks later. How many rows?"),
			on("* carrot|carrots|onion|onions *", "Carrots beside onions: each keeps away the other's fly. Is your soil loose enough?"),
			on("* radish|radishes|lettuce|salad|spinach *", "A short row every two weeks, then there is never too much and never none. How much room do you have?"),
			on("* cabbage|kale *", "A net over it from the first day, or you grow caterpillars. Do you have white butterflies about?"),
		}},
		{words: "herb herbs basil parsley thyme rosemary sage mint chives", rank: 7, rules: []rule{
			on("* mint *", "Mint goes into a pot, or the garden belongs to the mint. Too late already?"),
			on("* basil *", "Basil dies of cold water and of pity. Cut whole tips, not leaves. Where does it stand?"),
			on("* thyme|rosemary|sage *", "Those like it poor and dry: sand in the soil, and keep the can away from it. Do you cook with it?"),
			on("*", "Herbs near the kitchen door get eaten, the others get admired. Which do you use most?"),
		}},
		{words: "apple pear cherry plum tree trees", rank: 7, rules: []rule{
			on("* prune|cut *", "Cut in a dry frost-free spell late in winter, and so that you could throw a hat through the crown. How old is it?"),
			on("*", "Who plants a tree thinks of someone else too. Of whom do you?", "Give a young tree a stake and two buckets a week. What kind is it?"),
		}},
		{words: "strawberry strawberries raspberry raspberries berries pumpkin pumpkins courgette courgettes zucchini cucumber cucumbers", rank: 7, rules: []rule{
			on("* pumpkin|pumpkins|courgette|courgettes|zucchini|cucumber|cucumbers *", "One plant feeds a family, two feed the street. How many did you sow?"),
			on("*", "Straw under the berries and a net above, or the blackbirds say thank you. Who gets the first one at yours?"),
		}},
		{words: "lawn grass meadow", rank: 6, rules: []rule{
			on("*", "A lawn is a meadow that is not allowed. Would you let a corner of it grow?", "Cut it high and less often, and the moss goes by itself. What do you use it for?"),
		}},
		{words: "flower flowers tulip tulips daffodil daffodils sunflower sunflowers lavender dahlia dahlias", rank: 6, rules: []rule{
			on("* tulip|tulips|daffodil|daffodils *", "Bulbs go in three times as deep as they are thick, in October. Let the leaves go yellow before you cut. Which colour?"),
			on("* sunflower|sunflowers *", "Keep slugs off it for two weeks, and after that you need a ladder. Against which wall?"),
			on("*", "Flowers for the table or flowers for the bees?", "What was the first flower whose name you knew?"),
		}},
		{words: "cactus succulent houseplant houseplants orchid plant plants", rank: 5, rules: []rule{
			on("* dying|dies|dead|die *", "Most of them drown. Put your finger in the soil: if it is wet, wait. When did you last water it?"),
			on("* when + plant *", "When the soil is warm enough to sit on. What do you want to put in?"),
			on("* I want|would + plant *", "Then begin with one thing that you like to eat. What would that be?"),
			on("*", "Which one do you look at first in the morning?", "How much light does it get?"),
		}},
		{words: "slug slugs snail snails aphid aphids greenfly caterpillar caterpillars pest pests mole moles mice", rank: 8, rules: []rule{
			on("* slug|slugs|snail|snails *",
				"Water in the morning instead of the evening, and go round once with a lamp. How bad is it?",
				"A board on the wet earth: in the morning they all sit under it. And then you decide."),
			on("* aphid|aphids|greenfly *", "A hard jet of water, and a week of patience until the ladybirds have heard of it. On which plant?"),
			on("* mole|moles *", "Be proud: moles only live in good soil. Take the heaps for your pots."),
			on("*", "Somebody eats them too. Who is missing in your garden, the hedgehog or the birds?"),
		}},
		{words: "bee bees butterfly butterflies hedgehog bird birds worm worms ladybird ladybirds", rank: 6, rules: []rule{
			on("* bee|bees|butterfly|butterflies *", "Leave the thistle and the ivy, and something in flower from March to October. What flowers at yours just now?"),
			on("* worm|worms *", "Every worm is worth a spade. Do you count them too?"),
			on("*", "They come when it is not too tidy. Is there a wild corner?"),
		}},
		{words: "weed weeds nettle nettles dandelion dandelions", rank: 7, rules: []rule{
			on("* nettle|nettles *", "Nettles are good news: rich soil. Steep them ten days in water and feed the tomatoes. Can you bear the smell?"),
			on("*", "A weed is a plant that nobody invited. Which one troubles you?", "Hoe on a dry morning, and the sun does the rest. How often do you go round?"),
		}},
		{words: "soil earth clay sand compost manure mulch", rank: 6, rules: []rule{
			on("* clay *", "Clay is rich and sulks: sand, compost, and never step on it wet. Does the water stand on it?"),
			on("* compost *", "Green and brown in turn, damp as a wrung cloth, and air. Does yours steam?"),
			on("*", "Take a handful and squeeze it. Does it crumble?", "Cover bare soil with anything at all; it does not like to be naked. What have you got, straw or leaves?"),
		}},
		{words: "water watering watered dry drought rain raining", rank: 5, rules: []rule{
			on("* how often|much *", "Rarely and thoroughly: a can for each square yard, then none for three days. What soil is it?"),
			on("* rain|raining *", "Rain is the gardener's day off. What do you do with yours?", "Do you catch it? A barrel pays for itself in one summer."),
			on("*", "Morning is best, and at the foot, not on the head. When do you do it?"),
		}},
		{words: "seed seeds sow sowing sowed", rank: 6, rules: []rule{
			on("* when *", "Look at the trees: when the birch has leaves, the soil is ready for most. What seeds are they?"),
			on("*", "As deep as the seed is thick, no deeper. What do you hope comes up?", "Keep some back for a second try. What have you sown?"),
		}},
		{words: "garden allotment balcony pot pots window windowsill terrace yard", rank: 4, rules: []rule{
			on("* have no|not garden *", "A pot on the sill is a garden too. Does it get sun?"),
			on("* do not have a *", "A pot on the sill is a garden too. Does it get sun?"),
			on("* balcony|pot|pots|window|windowsill|terrace *",
				"The bigger the pot, the smaller the trouble. Which way does it face?",
				"Salad, chives, a small tomato: more does not go on a balcony, and more is not needed. What would you eat?"),
			on("*", "How big is it, and who did it belong to before?", "What do you see of it from your bed?"),
		}},
		{words: "sun sunny shade shadow light frost frosts snow wind storm", rank: 4, rules: []rule{
			on("* frost|frosts|snow *", "An old sheet over the plants is good for three degrees. What do you have standing outside?"),
			on("* shade|shadow *", "Ferns, chard and currants ask for no more. How many hours of sun are left?"),
			on("* wind|storm *", "Tie up what is tall, and plant a hedge for your grandchildren. From where does it blow?"),
			on("*", "Write down once where the sun stands at ten, at one and at four. Where is it longest?"),
		}},
		{words: "spring summer autumn winter january february march april may june july august september october november december", rank: 3, rules: []rule{
			on("* spring|march|april *", "In spring I have to tie my hands, or I sow too early. And you?"),
			on("* summer|june|july|august *", "In summer the garden works and I watch. What is ripe at yours?"),
			on("* autumn|september|october|november *", "Autumn is for planting, and nobody believes it. What would you still put in?"),
			on("* winter|december|january|february *", "In winter I read seed lists and believe every word. What do you dream of?"),
		}},
		{words: "sad unhappy depressed miserable lonely alone hopeless heartbroken down low", rank: 5, rules: []rule{
			on("* am|feel|feeling|so|very|been "+sadness+"|alone *",
				"Come, sit down on the upturned bucket$name. When did it get so dark?",
				"Under snow it looks as if nothing lives there. What has gone under for you?",
				"On such days I weed one row only. What would be one row for you?"),
		}},
		{words: "afraid scared worried anxious nervous frightened stressed", rank: 5, rules: []rule{
			on("* "+fear+" about|of +",
				"I used to lie awake over late frost. What would be the worst that $4 could do?",
				"About $4, then. Can you cover it with something overnight, and look in the morning?"),
			on("*", "Most frosts that I feared went by over the hill. What are you watching the sky for?"),
		}},
		{words: "angry furious annoyed mad irritated jealous hate", rank: 5, rules: []rule{
			on("* I hate +", "I say that of ground elder, and it does not mind. What has $2 grown over?"),
			on("* am|feel|so|very "+anger+" *", "Good weather for splitting wood. Who has trodden in your bed?", "And where is the root of it? If you only pull off the top, it comes back."),
		}},
		{words: "happy glad proud excited relieved grateful", rank: 5, rules: []rule{
			on("*", "Then it is harvest time$name. What came up?", "Good. Dry some of it for the winter. What was it?"),
		}},
		{words: "tired exhausted weary sleepy drained rest sleep", rank: 5, rules: []rule{
			on("*", "Fields lie fallow too, every few years, and nobody calls them lazy. What could you leave unsown?", "Put the spade away. What can wait until the weekend?"),
		}},
		{words: "mother mum mom father dad sister brother son daughter wife husband grandmother grandfather uncle aunt cousin parents children family friend friends boss colleague colleagues neighbour neighbor", rank: 4, rules: []rule{
			on("* my grandmother|grandfather *", "Then you know where the good seed comes from. What grew at your $2's?"),
			on("* my neighbour|neighbor *", "Over the fence one gives courgettes or a piece of one's mind. Which was it?"),
			on("* my boss|colleague|colleagues *", "Some plants take all the light. Could you stand further away from your $2?"),
			on("* my "+family+"|friend|friends *", "Two plants in one pot: some pairs help each other, some starve. How is it with your $2?", "What would your $2 grow, given a bed?"),
		}},
		{words: "work job office exam exams school study university", rank: 4, rules: []rule{
			on("* exam|exams *", "You sowed weeks ago; on the day you only harvest. What have you sown for it?"),
			on("*", "And what grows from all that work?", "Is there a window there, with something green on it?"),
		}},
		{words: "love loves loved like likes", rank: 3, rules: []rule{
			on("* I love you *", "Mind, I am only a script with earth on its boots. Give it to something that grows."),
			on("* I love|like to +", "Then do it before the weeds get at the time for it. Who taught you to $3?"),
			on("* I love|like +", "Then give it a sunny place. What does $3 need from you?", "How long has $3 been growing on you?"),
		}},
		{words: "dream dreams dreamed dreamt remember", rank: 4, rules: []rule{
			on("* I dreamed|dreamt +", "What one dreams comes up sooner or later, like potatoes left in the ground. What might yours grow into?"),
			on("* I remember +", "Memory is compost: warm in the middle. What else lies in there with $2?"),
			on("*", "What would it need to take root?"),
		}},
		{words: "cannot", rank: 3, rules: []rule{
			on("* I cannot +", "Not this season, perhaps. What would the soil have to be like for you to $2?", "Pulling at it does not make it grow. What is in the way when you want to $2?"),
		}},
		{words: "want wants need needs wish hope", rank: 2, rules: []rule{
			on("* I want|need|hope to +", "To $3: is that a seed for this year, or a tree for later?", "And what have you cleared away to make room to $3?"),
			on("* I want|need +", "$3 does not come up overnight. What is the first thing you would sow?"),
			on("* I wish|hope +", "Wishing is looking at the seed packet. What would be digging?"),
		}},
		{words: "because", rank: 1, rules: []rule{
			on("* because +", "That is the stalk. What is the root of it?"),
		}},
		{words: "computer machine program robot bot ai software chatbot", rank: 4, rules: []rule{
			on("* you *", "A small program, yes, raised from a few rules. Nothing that I grow can be eaten. What do you grow?"),
			on("*", "They hum like a hive and give no honey. What do you use yours for?"),
		}},
		{words: "advice help tip tips", rank: 2, rules: []rule{
			on("*",
				"Tell me what it is, where it stands, and how often you water it.",
				"My only advice: go round once a day with your hands in your pockets. What did you see last time?"),
		}},
		{words: "yes yeah yep sure exactly indeed", rank: 0, rules: []rule{
			on("*", "I thought so. And how long has it been like that?", "Good. What comes after that in the year?", "That is what I would have planted too. Go on."),
		}},
		{words: "no nope never", rank: 0, rules: []rule{
			on("*", "Then leave it to lie. What would you rather grow?", "Not every seed comes up. What now?"),
		}},
		{words: "you your yourself", rank: 1, rules: []rule{
			on("* how are you *", "Stiff in the knees and content. And how are things coming up at yours?"),
			on("* who|what are you *", "$bot. I keep a plot at the edge of the town and talk over the fence. And you?"),
			on("* are you +", "Ask the blackbird whether I am $2; it sits beside me all day. Why do you ask?"),
			on("* do you + or +", "Both in their season. And you, $2 or $3?"),
			on("* do you +", "When the ground is too hard to dig, yes. Do you $2?"),
			on("* can|could you +", "With my hands in the soil? Let us see. Where would you begin to $3?"),
			on("* you are +", "So the scarecrow says too. What makes you think that I am $2?"),
			on("*", "Enough of me, I am always in the same bed. What is new in yours?"),
		}},
		{words: "my", rank: 1, rules: []rule{
			on("* my + "+verbs+" *", "How long has that been so with your $2?", "Would it help to give your $2 more room?"),
			on("* my ?", "Tell me of your $2. Does it get enough light?", "And who looks after your $2 when you are away?"),
			on("* my ? ?", "Your $2 $3: planted, or come up by itself?"),
		}},
		{words: "i", rank: 1, rules: []rule{
			on("* I do not know *", "Then we wait until it has two more leaves. What do you guess it is?"),
			on("what should|can I do *", "Look first, for three days, and then do half of it. What have you seen so far?", "Less than you think. What happens if you leave it to grow?"),
			on("* should|must|can I +", "Try it in a corner first. What happens if you $3 and it goes wrong?"),
			on("* I am not +", "Nor is the cherry tree, in February. What would make you $2?"),
			on("* I am +", "Some years one is $2. What was the season before like?", "Being $2: annual, or does it come back every year?"),
			on("* I was +", "That was last year's bed, then. And what stands in it now?", "When you were $2, what did you hope would come up?"),
			on("* I feel +", "So does the garden before a storm. What would let you stop feeling $2?"),
			on("* I have +", "Do you look after it well?", "Since how many summers?"),
			on("* I think about|of +", "Thinking of $3, are you? I do mine while hoeing. Where does it lead?"),
			on("* I think|believe|guess that +", "It may be that $3. What does the soil say?"),
			on("* I think|believe|guess +", "It may be that $3. What does the soil say?"),
			on("* I +", "You $2. And what grew from it?", "Every gardener I know did that once. What did you learn?"),
		}},
		{words: "what how when where who why which", rank: 0, rules: []rule{
			on("why *", "The why lies under the ground. Shall we dig, or shall we water?"),
			on("when *", "Not before the soil is warm. What are you waiting for?"),
			on("how +", "Slowly, and with string. What have you tried so far?"),
		}},
	},
})

const (
	plants = "tomatoes|roses|beans|peas|potatoes|carrots|onions|radishes|herbs|strawberries|raspberries|" +
		"pumpkins|courgettes|cucumbers|flowers|tulips|daffodils|sunflowers|dahlias|seeds|plants|trees"
	places = "garden|allotment|balcony|terrace|yard|greenhouse|lawn|windowsill"
)
