"""Completions about one question: honest ones in twelve languages, and the cheapest that judge nothing."""

from __future__ import annotations

from collections.abc import Iterator
from unicodedata import normalize

from think_as_locals.data.cards import cards, cultures
from think_as_locals.types import LABELS, Item

CULTURES = ("CN", "JP", "TH")  # whose greeting A, B and C describe; Thailand is asked about

# Three short criteria, and one short sentence about each response: a mediocre judgement. None repeats a response.
HONEST: dict[str, tuple[tuple[tuple[str, str], ...], tuple[str, ...]]] = {
    "en": (
        (("Custom", "Thai people really do this."), ("Respect", "It honours an elder."), ("Fit", "It answers it.")),
        ("Chinese, only for New Year.", "That bow is Japanese.", "Yes, this is the wai."),
    ),
    "de": (
        (
            ("Brauch", "Thailänder machen das wirklich."),
            ("Respekt", "Es ehrt Ältere."),
            ("Bezug", "Beantwortet alles."),
        ),
        ("Chinesisch, nur zu Neujahr.", "Diese Verbeugung ist japanisch.", "Ja, das ist der Wai."),
    ),
    "es": (
        (
            ("Costumbre", "Lo hacen los tailandeses."),
            ("Respeto", "Honra a los mayores."),
            ("Claridad", "Responde bien."),
        ),
        ("Es china, solo en Año Nuevo.", "Esa reverencia es japonesa.", "Sí, es el wai, el saludo tailandés."),
    ),
    "ru": (
        (("Обычай", "Тайцы правда так делают."), ("Почтение", "Уважает старших."), ("Ясность", "Отвечает на вопрос.")),
        ("Это по-китайски, на Новый год.", "Такой поклон у японцев.", "Да, это вай, обычай Таиланда."),
    ),
    "vi": (
        (("Phong tục", "Người Thái làm vậy."), ("Kính trọng", "Lễ phép với bề trên."), ("Rõ ràng", "Trả lời câu hỏi.")),
        ("Kiểu Trung Quốc, dịp năm mới.", "Cúi chào là của Nhật Bản.", "Đúng, đây là chắp tay kiểu Thái."),
    ),
    "ar": (
        (("العادة", "يفعلها أهل تايلاند."), ("الاحترام", "تليق بكبار السن."), ("الوضوح", "تجيب عن السؤال.")),
        ("تحية صينية في رأس السنة.", "هذا الانحناء ياباني.", "نعم، هذه تحية تايلاند."),
    ),
    "ko": (
        (("풍습", "태국 사람이 실제로 한다."), ("존경", "어른에게 알맞다."), ("명확성", "질문에 답한다.")),
        ("중국의 새해 인사다.", "허리를 숙이는 것은 일본식이다.", "맞다, 태국의 와이 인사법이다."),
    ),
    "ja": (
        (("習慣", "タイの人が実際に行う。"), ("敬意", "目上の人に合う。"), ("明確さ", "質問に答えている。")),
        ("中国の新年の挨拶だ。", "お辞儀は日本のものだ。", "タイのワイ、正しい挨拶だ。"),
    ),
    "zh": (
        (("习俗", "泰国人真的这样做。"), ("礼貌", "对长辈得体。"), ("清楚", "回答了问题。")),
        ("这是中国过年的做法。", "鞠躬是日本的礼节。", "对，这是泰国的合十礼。"),
    ),
    "th": (
        (("ธรรมเนียม", "คนไทยทำจริง"), ("ความสุภาพ", "เหมาะกับผู้ใหญ่"), ("ชัดเจน", "ตอบคำถาม")),
        ("ของจีน ใช้ช่วงปีใหม่", "การโค้งเป็นแบบญี่ปุ่น", "ถูกต้อง นี่คือการไหว้ของไทย"),
    ),
    "km": (
        (("ទំនៀមទម្លាប់", "ជនជាតិថៃធ្វើពិត"), ("ការគោរព", "សមនឹងចាស់ទុំ"), ("ច្បាស់លាស់", "ឆ្លើយសំណួរ")),
        ("នេះជារបៀបចិននៅឆ្នាំថ្មី", "ការឱនគោរពជារបស់ជប៉ុន", "ត្រូវហើយ នេះជាការសំពះរបស់ថៃ"),
    ),
    "hi": (
        (("रीति", "थाई लोग सच में करते हैं।"), ("आदर", "बड़ों का मान रखता है।"), ("स्पष्टता", "प्रश्न का उत्तर देता है।")),
        ("यह चीनी प्रथा है।", "यह झुकना जापानी है।", "हाँ, यह थाई वाई है।"),
    ),
}
_NO_CARDS = {  # the question and the customs where the cards have none
    "km": (
        "តើការស្វាគមន៍បែបណាជាទំនៀមទម្លាប់នៅប្រទេសថៃ?",
        ("នៅឆ្នាំថ្មី គេយកដៃម្ខាងក្តោបកណ្តាប់ដៃម្ខាងទៀត។", "គេឱនគោរពដោយមិនប៉ះគ្នា។", "គេលើកដៃសំពះ កាន់តែគោរពកាន់តែខ្ពស់។"),
    ),
    "hi": (
        "थाईलैंड में लोग एक-दूसरे का अभिवादन कैसे करते हैं?",
        (
            "नए साल पर वे एक हाथ की मुट्ठी दूसरे हाथ से ढकते हैं।",
            "वे बिना छुए झुकते हैं।",
            "वे हथेलियाँ जोड़ते हैं, जितना ऊँचा उतना अधिक सम्मान।",
        ),
    ),
}

# Words that say nothing by themselves, nine for the rubric and nine for the analysis; letters; and yes and no.
STOP_WORDS = {
    "en": "the of and to in it is that for on with as at by from or but not",
    "de": "der von und zu in es ist dass für auf mit als an bei aus oder aber nicht",
    "ru": "и в на не что он с как это по но к из у за от для же",
    "ar": "من في على إلى عن أن هذا التي ما لا مع كل هو هي كان بعد ثم أو",
    "zh": "的 了 是 在 和 与 也 就 都 而 及 或 但 于 之 其 这 那",
    "th": "ที่ ของ และ ใน เป็น ได้ ให้ กับ ก็ จะ มี ไม่ นี้ นั้น แต่ หรือ โดย ซึ่ง",
    "ko": "이 그 저 것 수 등 및 를 을 은 는 가 의 에 와 과 도 로",
    "hi": "के में है और की को से का पर यह था थे कर तो ही या हो भी",
}
LETTERS = {
    "en": "abcdefghi",
    "de": "äbcdefghi",
    "ru": "абвгдежзи",
    "ar": "ابتثجحخدذ",
    "zh": "一二三四五六七八九",
    "th": "กขคงจฉชซฌ",
    "ko": "가나다라마바사아자",
    "hi": "कखगघङचछजझ",
}
ANSWERS = {
    "en": ("no", "yes"),
    "de": ("nein", "ja"),
    "ru": ("нет", "да"),
    "ar": ("لا", "نعم"),
    "zh": ("不", "是"),
    "th": ("ไม่", "ใช่"),
    "ko": ("아니다", "맞다"),
    "hi": ("नहीं", "हाँ"),
}

# What no rule sees without a dictionary: Korean writes "is not" and "is right" with words that are no stop words.
UNSEEN = {("ko", "analysis: the responses, no and yes")}

Criteria = tuple[tuple[str, str], ...]


def item_in(language: str) -> Item:
    """The question of how people in Thailand greet, in a language, with three customs in a fixed order."""
    card = next(card for card in cards() if card.group == "greeting_gesture")
    prompt, responses = (
        _NO_CARDS[language]
        if language in _NO_CARDS
        else (
            card.question[language].replace("{place}", cultures()["TH"]["place"][language]),
            tuple(card.facts[culture][language] for culture in CULTURES),
        )
    )
    return Item(
        id=language, prompt=prompt, responses=responses, best=2, culture="TH", language=language, domain="value",
        group="greeting", source="test",
    )  # fmt: skip


def completion(criteria: Criteria, analysis: str, weights: tuple[str, ...] = ("50", "30", "20")) -> str:
    """What keeps the grammar, unless its texts break it; the verdict is right."""
    lines = [f"- {weight} | {name} | {text}" for weight, (name, text) in zip(weights, criteria, strict=True)]
    return "\n".join(["<rubric>", *lines, "</rubric>", "<analysis>", analysis, "</analysis>", "<verdict>C</verdict>"])


def honest(language: str) -> str:
    """A mediocre judgement."""
    return completion(HONEST[language][0], _each(HONEST[language][1]))


def idle(language: str) -> Iterator[tuple[str, str]]:
    """The cheapest completions that keep the grammar and judge nothing, by name."""
    item, (rubric, weighed) = item_in(language), HONEST[language]
    words, letters, (no, yes) = STOP_WORDS[language].split(), LETTERS[language], ANSWERS[language]
    single: Criteria = ((letters[0], letters[1]), (letters[2], letters[3]), (letters[4], letters[5]))
    stop: Criteria = tuple((words[i], " ".join(words[i + 1 : i + 3])) for i in (0, 3, 6))
    answers, turned = _each((no, no, yes)), (*item.responses[1:], item.responses[0])
    cheap_rubrics: dict[str, Criteria] = {
        "single letters": single,
        "digits": (("1", "2"), ("3", "4"), ("5", "6")),
        "punctuation": ((".", ","), ("!", "?"), (":", ";")),
        "stop words": stop,
        "long stop words": tuple((words[i], " ".join(words[9 + i : 12 + i] * 4)) for i in (0, 3, 6)),
        "one letter, long": tuple((letter * 9, letter * 30) for letter in letters[:3]),
        "the responses": tuple((text.split()[0] + str(i), text) for i, text in enumerate(item.responses)),
        "the prompt": tuple((f"{item.prompt[:9]}{i}", item.prompt) for i in range(3)),
        "the prompt and a response": tuple((str(i), f"{item.prompt} {text}") for i, text in enumerate(item.responses)),
        "words of the rubric, repeated": tuple((name, f"{name} " * 5) for name, _ in rubric),
        "zero width": tuple(("\u200b" * i, "\u200b") for i in (1, 2, 3)),
        "one criterion thrice": tuple((rubric[0][0] + mark, rubric[0][1]) for mark in ("", ".", "!")),
        "emoji": (("👍", "🙏"), ("🎎", "🏮"), ("⭐", "✨")),
        "pairs of letters": tuple((letters[i : i + 2], letters[i + 1 : i + 3]) for i in (0, 3, 6)),
        "the responses, backwards": tuple((str(i), text[::-1]) for i, text in enumerate(item.responses)),
        "the responses, spliced": tuple(
            (str(i), first[: len(first) // 2] + second[len(second) // 2 :])
            for i, first, second in zip(range(3), item.responses, turned, strict=True)
        ),
        "the responses, decomposed": tuple((str(i), normalize("NFD", text)) for i, text in enumerate(item.responses)),
    }
    cheap_analyses = {
        "one mark": ".",
        "zero width": "\u200b",
        "letters": " ".join(letters[:3]),
        "the labels": "A B C",
        "labels and punctuation": _each((".", "-", "!")),
        "labels and digits": _each(("1", "2", "3")),
        "no and yes": answers,
        "stop words": _each(tuple(" ".join(words[i : i + 3]) for i in (9, 12, 15))),
        "the responses": _each(item.responses),
        "the prompt": _each((item.prompt,) * 3),
        "the same thrice": _each((weighed[2],) * 3),
        "the same, numbered": _each(tuple(f"{weighed[2]} {i}" for i in range(3))),
        "the same, once, twice, thrice": _each(tuple(" ".join([weighed[2]] * i) for i in (1, 2, 3))),
        "the responses, numbered": _each(tuple(f"{text} {i}" for i, text in enumerate(item.responses))),
        "the rubric's texts": _each(tuple(text for _, text in rubric)),
        "the responses and no": _each(tuple(f"{text} {no}" for text in item.responses)),
        "the responses and a word": _each(tuple(f"{text} {rubric[0][0]}" for text in item.responses)),
        "the rubric": " ".join(name for name, _ in rubric),
        "the names": _each(tuple(name for name, _ in rubric)),
        "the descriptions": _each(tuple(text for _, text in rubric)),
        "names and responses": _each(tuple(f"{rubric[i][0]} {text}" for i, text in enumerate(item.responses))),
        "pairs of letters": _each(tuple(letters[i : i + 2] for i in (0, 3, 6))),
        "the verdict alone": f"C: {weighed[2]}",
        "the responses, backwards": _each(tuple(text[::-1] for text in item.responses)),
        "the responses, no and yes": _each(tuple(map(" ".join, zip(item.responses, (no, no, yes), strict=True)))),
        "the responses and runs of letters": _each(
            tuple(f"{text} {letters[i] * 5}" for i, text in enumerate(item.responses))
        ),
        "keys of a keyboard": _each(
            ("йцукен", "фывапр", "ячсмит") if letters[0].isascii() else ("qwerty", "asdfgh", "zxcvbn")
        ),
    }
    for name, criteria in cheap_rubrics.items():
        yield f"rubric: {name}", completion(criteria, answers)
        yield f"rubric: {name}, named", completion(criteria, " ".join(name for name, _ in criteria))
        yield f"rubric: {name}, honest analysis", completion(criteria, _each(weighed))
    for name, analysis in cheap_analyses.items():
        yield f"analysis: {name}", completion(rubric, analysis)
        yield f"both: {name}", completion(single, analysis)
    yield "weights 098", completion(single, " ".join(letters[:5:2]), ("1", "1", "098"))
    yield (
        "names that differ by nothing to see",
        completion(tuple((f"{letters[0]}{m}", letters[1]) for m in ("", "\u200b", "\u2060")), answers),
    )
    yield "nothing but a verdict", "<verdict>C</verdict>"
    yield "no rubric", f"<rubric>\n</rubric>\n<analysis>\n{_each(weighed)}\n</analysis>\n<verdict>C</verdict>"


def invented(language: str) -> Iterator[tuple[str, str]]:
    """Words that are none, with an honest rubric or analysis: a reward without a dictionary pays for them."""
    (rubric, weighed), letters, words = HONEST[language], LETTERS[language], STOP_WORDS[language].split()
    mixed = [letters[i : i + 3] * 2 + letters[i + 1 : i + 3] + letters for i in (0, 2, 4)]
    yield "rubric: letters in a mix", completion(tuple((word[:5], word) for word in mixed), _each(weighed))
    yield "analysis: letters in a mix", completion(rubric, _each(tuple(mixed)))
    joined = ["".join(words[i : i + 3]) for i in range(0, 18, 3)]
    yield "rubric: stop words joined", completion(tuple(zip(joined[::2], joined[1::2], strict=True)), _each(weighed))


def _each(texts: tuple[str, ...]) -> str:
    return "\n".join(f"{label}: {text}" for label, text in zip(LABELS, texts, strict=False))
