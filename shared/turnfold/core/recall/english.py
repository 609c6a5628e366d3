"""English function words, which are not looked up, irregular forms, similar words, and kinds."""

from typing import Final

FUNCTION_WORDS: Final = frozenset(
    (
        "a about above across after again against all along alongside also although am among an "
        "and any are around as at be because been before behind being below beneath beside "
        "besides between beyond both but by can could despite did do does doing down during each "
        "either else ever except few for from further get had has have having he her here hers "
        "herself him himself his how however i if in instead into is it its itself just let like "
        "may me might more most much must my myself no nor not now of off on once one only onto "
        "or other our ours ourselves out over own per regarding same shall she should since so "
        "some such than that the their theirs them themselves then there therefore these they "
        "this those though through throughout till to together too toward towards under unless "
        "unlike until up upon us very via was we were what when where whereas whether which while "
        "who whom whose why will with within without would yes yet you your yours yourself "
        "yourselves "
        # What a question asks for more generally than an answer says it.
        "aspect aspects different kind kinds many several thing things various "
        # The parts of words with an apostrophe.
        "aren couldn d didn doesn don hadn hasn haven isn ll m re s shouldn t ve wasn weren wouldn"
    ).split()
)
"""Words without a topic of their own. They occur in every second message."""

IRREGULAR_FORMS: Final = tuple(
    tuple(forms.split())
    for forms in (
        "agree agreed", "become became", "begin began begun", "bend bent", "bite bit bitten",
        "blow blew blown", "break broke broken", "bring brought", "build built", "buy bought",
        "catch caught", "child children", "choose chose chosen", "come came", "deal dealt",
        "dig dug", "draw drew drawn", "drink drank drunk", "drive drove driven", "eat ate eaten",
        "fall fell fallen", "feed fed", "feel felt", "fight fought", "find found",
        "fly flew flown", "foot feet", "forget forgot forgotten", "free freed",
        "freeze froze frozen", "give gave given", "go goes going gone went", "grow grew grown",
        "hang hung", "hear heard", "hide hid hidden", "hold held", "keep kept", "knife knives",
        "know knew known", "lead led", "leave left", "lend lent", "lose lost", "make made",
        "man men", "mean meant", "meet met", "mouse mice", "pay paid", "person people",
        "ride rode ridden", "run ran", "say said", "see saw seen", "seek sought", "sell sold",
        "send sent", "shake shook shaken", "shoot shot", "show showed shown", "sing sang sung",
        "sit sat", "ski skied", "sleep slept", "speak spoke spoken", "spend spent",
        "stand stood", "steal stole stolen", "stick stuck", "strike struck", "swear swore sworn",
        "sweep swept", "swim swam swum", "take took taken", "teach taught", "tear tore torn",
        "tell told", "think thought", "throw threw thrown", "tooth teeth", "understand understood",
        "use used using", "wake woke woken", "wear wore worn", "wife wives", "win won",
        "woman women", "write wrote written",
    )
)  # fmt: skip
"""Verbs and nouns with their irregular forms, the base form first."""

SIMILAR_WORDS: Final = tuple(
    tuple(words.split())
    for words in (
        # people
        "child kid son daughter baby toddler", "parent mother father mom dad mum",
        "family relative sibling brother sister aunt uncle cousin grandma grandpa",
        "spouse husband wife partner fiance", "friend buddy pal mate",
        "boss manager supervisor", "colleague coworker teammate", "user customer client",
        "team group club", "teacher professor instructor", "student pupil", "lawyer attorney",
        "doctor physician hospital clinic", "soldier military army veteran",
        # life
        "birth born birthday", "marry marriage wedding engaged", "divorce separate breakup",
        "die death dead funeral", "religion church faith", "therapy therapist counselor counseling",
        "ill sick disease illness", "injury hurt injured wound", "medicine medication drug pill",
        "allergy allergic", "sleep insomnia rest", "weight pounds kilograms",
        "exercise workout gym fitness training", "diet nutrition eating", "hair haircut beard",
        "clothes dress shirt outfit clothing", "shoe boot sneaker", "gift present",
        "goal aim target objective", "hobby interest passion", "favorite favourite prefer love",
        "dream wish hope", "award prize trophy", "help assist support", "plan schedule appointment",
        # feelings
        "happy glad joy pleased", "sad upset unhappy", "angry mad furious",
        "afraid scared fear nervous anxious", "stress stressed pressure tense",
        "difficult tough challenge challenging", "support encourage motivate motivation",
        # work and money
        "job work career profession occupation", "company firm business employer",
        "salary wage income", "money cash budget", "cost price", "loan debt mortgage",
        "buy purchase acquire", "delivery shipping shipment package parcel",
        "discount coupon sale deal", "invoice bill receipt payment", "cancel refund return",
        "delay late postpone", "meeting conference", "speech talk presentation",
        "volunteer charity donate donation", "election politics campaign vote",
        "crime robbery theft", "school college university course", "exam test quiz",
        "research science experiment", "compete competition contest tournament",
        # places and travel
        "house home apartment flat", "city town village", "country nation abroad",
        "trip travel vacation holiday journey visit", "hotel hostel lodging",
        "flight airplane plane airport", "train railway station", "car vehicle truck",
        "bicycle bike cycling", "move relocate relocation", "restaurant cafe diner",
        "beach sea ocean coast", "mountain hill peak", "forest woods", "lake river waterfall",
        "hike trail trek", "camp camping tent", "nature outdoor outdoors", "garden plant flower",
        "weather rain snow storm", "sunset sunrise", "pet dog cat puppy kitten",
        # food and leisure
        "food meal dish recipe cook", "dessert cake cookie pie pastry",
        "drink beverage coffee tea juice", "movie film cinema", "book novel story",
        "song music album", "instrument guitar piano violin", "dance ballet",
        "paint art draw", "picture photo image", "photograph camera photography",
        "sport game match",
        # things that are made
        "phone mobile smartphone", "computer laptop", "website webpage",
        "software program application app", "bug error failure fault", "password login credential",
        "deploy release rollout", "problem issue trouble", "begin start launch",
        "end finish complete", "fix repair mend solve", "create make build",
        "improve enhance upgrade", "change modify alter", "choose pick select",
    )
)  # fmt: skip
"""Groups of words of which a question often has one and its answer another."""

KINDS: Final = """\
sport: baseball basketball bowling boxing cricket cycling football golf gymnastics hockey rugby
sport: running skating skiing snowboarding soccer surfing swimming tennis volleyball
martial: aikido boxing fencing judo karate kickboxing taekwondo wrestling
exercise workout fitness: aerobics boxing cycling jogging kickboxing pilates running swimming
exercise workout fitness: weights yoga
pet animal: bird cat dog fish hamster horse kitten parrot puppy rabbit snake turtle
instrument: cello clarinet drum flute guitar harp keyboard piano saxophone trumpet ukulele
instrument: violin
art craft: drawing embroidery knitting painting photography pottery sculpture sewing sketch
art craft: watercolor
hobby activity pastime leisure: baking bowling camping climbing cooking dancing drawing fishing
hobby activity pastime leisure: gardening gaming hiking knitting painting photography pottery
hobby activity pastime leisure: reading running sailing skiing surfing swimming yoga
country abroad: australia austria brazil britain canada china denmark egypt england france
country abroad: germany greece india ireland israel italy japan kenya korea mexico netherlands
country abroad: norway poland portugal russia scotland spain sweden switzerland thailand turkey
country abroad: ukraine usa
city town: amsterdam athens atlanta bangkok barcelona beijing berlin boston chicago dallas delhi
city town: denver dublin houston istanbul lisbon london madrid miami milan moscow mumbai munich
city town: paris philadelphia phoenix rome seattle shanghai stockholm sydney tokyo toronto
city town: vancouver vienna
state: alabama alaska arizona california carolina colorado florida georgia hawaii illinois
state: indiana massachusetts michigan minnesota nevada ohio oregon pennsylvania tennessee texas
state: virginia washington wisconsin
food dish meal cook recipe: bread burger cheese chicken curry fish lasagna noodles pancake pasta
food dish meal cook recipe: pizza rice salad sandwich soup steak sushi taco vegetable
dessert sweet bake: brownie cake chocolate cookie cupcake donut muffin pastry pie pudding tart
drink beverage: beer coffee juice lemonade milk smoothie soda tea water wine
fruit: apple banana berry cherry grape lemon mango orange peach pear strawberry
holiday celebrate celebration festival: anniversary birthday christmas diwali easter graduation
holiday celebrate celebration festival: halloween thanksgiving wedding
season: autumn spring summer winter
weather: cloudy fog hail heat rain snow storm sunny wind
disaster emergency: earthquake fire flood hurricane tornado wildfire
color colour: black blue brown gray green orange pink purple red silver white yellow
clothes clothing outfit wear: boots coat dress hat jacket jeans scarf shirt shoes skirt sneakers
clothes clothing outfit wear: suit sweater
furniture: bed bookcase chair couch desk lamp shelf sofa table
jewelry accessory: bracelet earring necklace ring watch
vehicle transport transportation: bicycle bike boat bus car ferry motorcycle plane scooter ship
vehicle transport transportation: subway taxi train tram truck van
profession job occupation career: accountant actor architect artist chef coach dentist designer
profession job occupation career: developer doctor driver editor engineer journalist lawyer
profession job occupation career: manager mechanic musician nurse pilot professor programmer
profession job occupation career: scientist teacher therapist writer
subject degree major study: biology business chemistry economics engineering history law
subject degree major study: literature mathematics medicine philosophy physics politics
subject degree major study: psychology sociology
genre: action biography comedy drama fantasy horror jazz mystery pop rap rock romance thriller
game: chess poker puzzle cards console nintendo playstation xbox
outdoor outdoors nature: beach camping canyon climbing fishing forest hiking kayak lake mountain
outdoor outdoors nature: park picnic river trail waterfall
illness disease health condition: allergy anxiety arthritis asthma cancer cold covid depression
illness disease health condition: diabetes fever flu headache infection injury migraine
illness disease health condition: pneumonia
emotion feeling: angry anxious excited grateful happy hopeful lonely nervous proud sad scared
relative family: aunt brother cousin daughter father grandma grandpa husband mother nephew niece
relative family: sister son uncle wife
language: arabic chinese english french german hindi italian japanese korean portuguese russian
language: spanish turkish
programming framework library technology: angular django flask java javascript kotlin node
programming framework library technology: php python rails react ruby rust spring swift
programming framework library technology: typescript vue
database: mongodb mysql oracle postgres postgresql redis sqlite
device gadget electronics: camera computer headphones laptop phone printer router tablet watch
plant flower: daisy herb lily orchid rose sunflower tree tulip
religion belief: buddhist christian church hindu islam jewish mosque muslim prayer synagogue
religion belief: temple
building place: cafe castle church cinema gallery gym hospital hotel library mall museum office
building place: park restaurant school shop stadium station store theater zoo
"""
"""Words for kinds of things, and examples: a question names a kind, its answer an example."""
