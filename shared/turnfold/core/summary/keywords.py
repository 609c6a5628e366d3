"""Keywords of kinds of sentences, in English, Chinese and Japanese, separated by `|`."""

from typing import Final


def _cues(*lines: str) -> tuple[str, ...]:
    return tuple("".join(lines).split("|"))


CONSTRAINT_WORDS: Final = frozenset(
    _cues(
        "must|never|always|cannot|can't|shouldn't|mustn't|prefer|preferably|require|requires|",
        "required|budget|limit|allergic|maximum|",
        "minimum",
    )
)
CONSTRAINT_PHRASES: Final = _cues(
    "from now on|please don't|please do not|, don't |but don't|do not use|don't use|",
    "please make sure|and make sure|also make sure|but make sure|so make sure|, make sure|",
    "you make sure|you to make sure|",
    "no more than|at most|at least|",
    "should not|only use|remember that|please remember|keep in mind|important:|instead of|",
    "without |has to be|needs to be|",
    "would only|need it to|rather than|under $|less than",
)
DECISION_PHRASES: Final = _cues(
    "let's go with|let's use|let's keep|let's do|we'll use|we will use|i'll take|i will take|",
    "go with |decided|we agreed|i choose|",
    "sounds good|go ahead|please proceed|i confirm|yes, please|i'd rather|i'll go|settled on|",
    "book it|that works|works for me|",
    "switch to",
)
DECISION_WORDS: Final = frozenset(
    _cues(
        "decided|agreed|chose|chosen|confirmed|approved|decision|proceed",
    )
)
REQUEST_WORDS: Final = frozenset(
    _cues(
        "please|implement|fix|add|write|create|build|make|find|show|tell|explain|refactor|update|",
        "change|remove|delete|check|run|test|",
        "help|book|cancel|recommend|suggest|give|review|investigate|deploy|install|configure|",
        "translate|summarize|compare|design|",
        "generate|look|search|need|want|commit|push|rename|move|plan|read|set|use|try|start|",
        "continue|calculate|reserve|order|",
        "schedule|transfer",
    )
)
IMPERATIVES: Final = frozenset(
    _cues("work|go|do|open|close|stop|keep|put|take|get|bring|call|send|note|use|let")
)
TELLING: Final = _cues(
    "i |i'm |i've |i'd |i'll |i am |it |it's |the |this |that |these |my |we |our |your |hmm|yes"
    "|no,|not "
)
REQUEST_PHRASES: Final = _cues(
    "can you|could you|would you|i want|i need|i'd like|i would like|help me|let's |we need|",
    "we should|how do i|how can i",
)
FACT_PHRASES: Final = _cues(
    "my name|i am |i'm |i have |i've |i live|i like|i love|i hate|i work|i was |i went|i recently|",
    "i use |i feel|i usually|",
    "my favorite|my favourite|my wife|my husband|my son|my daughter|my user id|my email|my phone|",
    "it's |we have |we use |we're |",
    "remember|runs on|lives in|is called|is at |is in |my |our |i can't |i traveled|i moved|",
    "i bought|i got ",
)
RESULT_WORDS: Final = frozenset(
    _cues(
        "done|fixed|implemented|created|updated|completed|booked|cancelled|canceled|added|removed|",
        "refactored|found|passed|passing|",
        "passes|works|working|resolved|committed|pushed|deployed|installed|confirmed|successfully|",
        "recommend|recommended|because|",
        "cause|caused|issue|problem|root|result|total|reserved|refunded|finished|verified|failed|",
        "wrote|changed|moved|renamed|",
        "processed|scheduled|transferred|available|recommendation|recommends|suggest",
    )
)
OPEN_PHRASES: Final = _cues(
    "todo|to do:|later|next time|follow up|still need|remains to|not yet|remind me|next step|",
    "outstanding|unresolved|blocked",
)
FILLER: Final = frozenset(
    _cues(
        "ok|okay|sure|thanks|thank|you|great|yes|no|hi|hello|hey|perfect|cool|nice|bye|goodbye|",
        "good|morning|evening|afternoon|",
        "alright|right|fine|yep|yeah|welcome|please|wow|awesome|absolutely|certainly|of|course|",
        "problem|got|it|understood|that's|it's|",
        "very|much|again|i|to|see|a|day|have|so|that|is|sounds|this|works|do",
    )
)
CONSENT: Final = (FILLER - {"a"}) | frozenset(
    _cues(
        "for|me|us|we|go|ahead|with|let's|let|proceed|then|now|all|just|one|both|book|confirm|",
        "confirmed|approved|agreed|decided|decision|chosen|i'll|take",
    )
)
"""Words that tell nothing of what was decided."""
FILLER_STARTS: Final = _cues(
    "hmm, |you're welcome|thank you|thanks|i'm glad|glad |if you have any|feel free|let me know|",
    "is there anything else|have a great|",
    "safe travels|i'm sorry|i apologize|no problem|great choice|of course|sure,|certainly|",
    "how can i|how may i|happy to help|",
    "i understand|enjoy |i'd be happy|good question|great question|sounds great|that sounds|",
    "perfect!|great!|nice to meet|",
    "i can help|i'll be here|with that, i can|could you please|okay, i will|ok, i will|",
    "okay, thank|",
    "thank you|don't hesitate|hi,|no worries",
)
FILLER_ALWAYS: Final = _cues(
    "please confirm|please let me know|please provide|once you |if so, please|could you please|",
    "if you have any|feel free|let me know|don't hesitate|thank you|thanks|i will try|",
    "okay, i will|ok, i will|you're welcome|",
    "i can help|i'll be here",
)
FORBIDDING: Final = _cues(
    "don't |do not |never |only |make sure ",
)
NAMES: Final = _cues(
    "my name is|my name's|call me |i'm called|我叫|我的名字|我名叫|名前は|と申します",
)
LASTING: Final = _cues(
    "my |our |i'm |i am |i live|i work|i use|we use|allergic|is called|runs on|我叫|",
    "我是|我的|我住|我家|我们的|过敏|私の|私は",
)
PLAN_STARTS: Final = _cues(
    "please let me know|please confirm if|please confirm the|please provide|if so, please|",
    "once you |would you like|let me|now let me|now i|i'll |i will |let's |first, let|next, |now |",
    "i need to|looking at|good, |good. |hmm|wait",
)
ZH_CONSTRAINT: Final = _cues(
    "必须|不要|不能|以后都|以后请|以后不|以后只|记住|只能|务必|禁止|预算|至少|最多|以上|以内|以下|",
    "要求|不超过|别用|不允许|过敏|请注意",
)
ZH_DECISION: Final = _cues(
    "决定|就选|选择|就这|确定|就去|那就|就用|同意|采用|改用|定了|就住|就吃|确认",
)
EAST_ASIAN_CONSENT: Final = _cues("就这|同意|それで")
ZH_REQUEST: Final = _cues(
    "请|帮我|我想|想要|我需要|能不能|可以帮|能否|告诉我|帮忙|麻烦|给我|介绍一下|查一下|实现|修复|写一|打算|能推荐|推荐一|推荐个|",
    "有什么推荐|改成|加上",
)
ZH_FACT: Final = _cues(
    "我叫|我是|我的|我喜欢|我很喜欢|我住|我在|我有|我最近|我今天|我去|我们|我昨天|我觉得|我也|我家|我妈|我爸|我不|我会|我买|我看|",
    "我对|我正|叫做|我刚",
)
ZH_RESULT: Final = _cues(
    "推荐|建议|已经|完成|原因|结果|修复|成功|地址|电话|评分|价格|门票|人均|可以去|可以选|有以下|分别是|总共|为您|给你|营业时间|",
    "是",
)
ZH_OPEN: Final = _cues(
    "待办|回头|稍后|下次|还没|以后再|提醒我|未完成|待定",
)
ZH_FILLER: Final = _cues(
    "谢谢|不客气|好的|你好|您好|再见|很高兴|没问题|不用谢|祝|嗯|随时|辛苦|太好了|收到|当然|真棒|很抱歉|不好意思|没关系|知道了|",
    "明白",
)
THANKS: Final = _cues(
    "谢谢|感谢|不用谢|不客气|没问题|ありがとう|詳しくありがとう|かしこまりました。|いいですね|如果你需要|如果您需要",
)
JA_CONSTRAINT: Final = _cues(
    "必ず|しないで|以内|以上|以下|だけ|予算|無料|希望|覚えて|禁止|ほうがいい|条件|できれば",
)
JA_DECISION: Final = _cues(
    "にします|決め|でお願いします|それで|お願いします|そこで|予約して",
)
JA_REQUEST: Final = _cues(
    "してください|ください|お願い|たい|教えて|探して|ほしい|もらえ|いただけ|ますか|でしょうか|紹介",
)
JA_FACT: Final = _cues(
    "私は|名前は|と申します|です|しました|住んで|好き|行く|計画",
)
JA_RESULT: Final = _cues(
    "です|ございます|なります|完了|予約|いかがでしょうか|如何でしょうか|住所|電話|料金|番号",
)
JA_FILLER: Final = _cues(
    "ありがとう|かしこまりました|こんにちは|承知|了解|わかりました|いいえ|どうぞ|よろしく|とんでも|またの|お役に立て|お気を付け|",
    "良いご旅行",
)
