"""English function words, which are not looked up, and irregular forms of words."""

from typing import Final

FUNCTION_WORDS: Final = frozenset(
    (
        "a about above after again against all also am an and any are as at be because been before "
        "being below between both but by can could did do does doing down during each either else "
        "ever few for from further get had has have having he her here hers herself him himself "
        "his how i if in into is it its itself just let like may me might more most much must my "
        "myself no nor not now of off on once one only or other our ours ourselves out over own "
        "same shall she should so some such than that the their theirs them themselves then there "
        "these they this those through to too under until up upon us very was we were what when "
        "where which while who whom whose why will with would yes yet you your yours yourself "
        "yourselves "
        # The parts of words with an apostrophe.
        "aren couldn d didn doesn don hadn hasn haven isn ll m re s shouldn t ve wasn weren wouldn"
    ).split()
)
"""Words without a topic of their own. They occur in every second message."""

IRREGULAR_FORMS: Final = tuple(
    tuple(forms.split())
    for forms in (
        "become became", "begin began begun", "bend bent", "bite bit bitten", "blow blew blown",
        "break broke broken", "bring brought", "build built", "buy bought", "catch caught",
        "child children", "choose chose chosen", "come came", "deal dealt", "dig dug",
        "draw drew drawn", "drink drank drunk", "drive drove driven", "eat ate eaten",
        "fall fell fallen", "feed fed", "feel felt", "fight fought", "find found",
        "fly flew flown", "foot feet", "forget forgot forgotten", "freeze froze frozen",
        "give gave given", "go goes going gone went", "grow grew grown", "hang hung", "hear heard",
        "hide hid hidden", "hold held", "keep kept", "knife knives", "know knew known",
        "lead led", "leave left", "lend lent", "lose lost", "make made", "man men", "mean meant",
        "meet met", "mouse mice", "pay paid", "person people", "ride rode ridden", "run ran",
        "say said", "see saw seen", "seek sought", "sell sold", "send sent", "shake shook shaken",
        "shoot shot", "show showed shown", "sing sang sung", "sit sat", "sleep slept",
        "speak spoke spoken", "spend spent", "stand stood", "steal stole stolen", "stick stuck",
        "strike struck", "swear swore sworn", "sweep swept", "swim swam swum", "take took taken",
        "teach taught", "tear tore torn", "tell told", "think thought", "throw threw thrown",
        "tooth teeth", "understand understood", "wake woke woken", "wear wore worn", "wife wives",
        "win won", "woman women", "write wrote written",
    )
)  # fmt: skip
"""Verbs and nouns with their irregular forms, the base form first."""
