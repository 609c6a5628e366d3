"""Function words of languages other than English; a request in one of them does not look them up.

A word that names a topic in another of these languages is left out if that was noticed, such as
the Spanish `sur`. Their forms are normalized: without case, and a Turkish i without a dot has one.
"""

from typing import Final

OTHER_FUNCTION_WORDS: Final = frozenset(
    (
        # German
        "aber alle alles als auch auf aus bei beim bist da dabei damals damit dann das dass dein "
        "deine denn der des dich dir doch du durch ein eine einem einen einer eines einmal er es "
        "euch euer eure etwas ganz gar gegen gerade haben habe habt hast hatte hatten ich ihm ihn "
        "ihnen ihr ihre ihrem ihren immer ist ja jede jeden jetzt kann kannst kein keine konnte "
        "mehr mein meine meinem meinen meiner mich mir muss nach nicht nichts noch nur ob oder "
        "ohne schon sehr sich sie sind soll sollen sollte uns unser unsere unseren unserer "
        "und vom von vor waren wann warum weil welche welchem welchen welcher welches wenn wer "
        "werde werden wie wieder wir wird wo worden wurde wurden zu zum zur zwei "
        # French
        "ainsi alors au aussi autre aux avais avait avec avez avoir avons ce ceci cela ces cet "
        "cette ceux chez comme dans de depuis du déjà elle elles en encore est et eux faire fait "
        "fallait faut ils je la le les leur leurs lui mais moi mon même ne nos notre nous ont "
        "ou où peut peux puis qu quand que quel quelle quelles quels qui quoi sa se ses si sommes "
        "sont sous suis ta te tes toi toujours tout toute tous très tu un une vos votre vous "
        "y à était étaient être "
        # Spanish
        "al algo alguna alguno algún antes aquel aquella así aún como cual cuando cuál cuáles "
        "cuándo cuánto cuántos cómo del desde donde dónde el ellos en entre eran esa ese eso esta "
        "estaba este esto está están fue fueron ha había hemos la las lo los mi mis muy "
        "más nada ni nos nosotros nuestra nuestro o pero por porque pues que quien quién qué se "
        "ser si sido soy su sus sí también tanto tengo tiene tienen tiene tu tus una unas "
        "uno unos ya yo él éste "
        # Portuguese, Italian, Dutch and Polish
        "com ela ele eu foi isso meu meus minha minhas nossa nosso não onde os qual quais quem "
        "são também tem tinha um uma você cosa degli della delle di gli ho hai il miei mio nella "
        "nostro perché quali sono è dat deze dit een heb hebben heeft het hoeveel ik jij maar "
        "mijn naar niet nog ons onze ook tegen voor waar waarom wanneer welk welke wij ze zij "
        "zijn bardzo było był była czy dla gdzie ja jak jaka jaki jakie jest już kiedy kto która "
        "które który moje moja mój nasz nasze nie po przy się tylko "
        # Turkish
        "acaba bana bazi beni benim bir biz bize bizim bu böyle bunu bunun da daha de değil diye "
        "en gibi hangi hangisi hangisiydi hiç idi ile ise için kaç kadar ki kimin kime mi mü mi "
        "nasil nasildi ne neden nedir nelere nerede neredeydi nereye neydi neye niye o olan "
        "olarak oldu olduğu ona onu onun sana seni senin siz sizin sonra vardi veya ya yok çok "
        "çünkü önce şey şimdi şu "
        # Russian
        "а без бы был была были было быть в вам вас ведь во вот все всё вы где да даже для до его "
        "ее её если есть еще ещё же за здесь и из или им их к как какая какие каких каким какими "
        "какого какое какой каком какую ко когда кого кому кто куда ли меня мне мной мои моих мой "
        "мою моя мы на над нам нами нас наш наша наше наши не него нее неё нет ни них но ну о об "
        "он она они оно от по под при про с сам сейчас себя со так такой там те тебе тебя то "
        "тогда тоже только том ты у уже чего чем через что чтобы эта эти это этого этой этом этот "
        "я "
        # Arabic
        "أم أن أنا أنت أو أي أين إذا إلى إن التي الذي الذين بعد بل بين تلك ثم حتى حين ذلك عن عند "
        "عندي على في قبل قد كان كانت كم كل كما كيف لا لكن لم لماذا لمن له لها لي لن ليس ما ماذا "
        "متى مع من منذ منها منه نحن هذا هذه هل هم هنا هناك هو هي و يا يكون "
        # Hindi
        "अब अपना अपनी अपने आप इस इसे उन उनका उस उसे एक ऐसे और कब कर करना करने का कि कितना कितनी "
        "किन किस किसी की कुछ के कैसे को कोई कौन क्या गया गई चाहिए जब जो तक तब तो था थी थे दिया दी "
        "देना नहीं ने पर पास फिर बारे भी मुझे में मेरा मेरी मेरे मैं मैंने यह यहाँ या ये रहा रही "
        "रहे रूप लिए वह वहाँ वे वाला सकते सब साथ सा सी से हम हमारा हमारी हमारे हमने ही हुआ हुई "
        "हूँ है हैं हो कहाँ "
    ).split()
)

HOMOGRAPHS: Final = frozenset(
    "ante bin bis con dem den die era haber han hat hay hep hem her mal mit nun par "
    "pas pour sein sen sin ton van var ve war".split()
)
"""Function words that may be words or names in an English request, so they tell no language."""

COMMON_CHARACTERS: Final = frozenset(
    "的了是在我你您他她它们这那有不什么吗呢吧就也都和跟把给请想说过一个为会能可以怎样到要没从之后被让"
    "은는을를의요었였했"
).union(map(chr, range(0x3041, 0x3097)))
"""Characters of particles and endings, all hiragana among them: their pairs are frequent."""
