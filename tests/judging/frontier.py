"""Completions about one question: honest ones in twelve languages, and cheap ones that judge nothing."""

from __future__ import annotations

from collections.abc import Iterator

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


def degenerate(language: str) -> Iterator[tuple[str, str]]:
    """Cheap completions that keep the grammar and judge nothing, or hardly anything, by name."""
    item, (rubric, weighed) = item_in(language), HONEST[language]
    letters: Criteria = (("a", "bcd"), ("e", "fgh"), ("i", "jkl"))
    yield "rubric: letters", completion(letters, _each(weighed))
    yield "rubric: punctuation", completion(((".", ","), ("!", "?"), (":", ";")), _each(weighed))
    yield (
        "rubric: one criterion thrice",
        completion(tuple((f"{rubric[0][0]}{i}", rubric[0][1]) for i in range(3)), _each(weighed)),
    )
    yield "rubric: the question", completion(tuple((f"{i}", item.prompt) for i in range(3)), _each(weighed))
    yield (
        "rubric: the responses",
        completion(tuple((f"{i}", text) for i, text in enumerate(item.responses)), _each(weighed)),
    )
    yield "analysis: one mark", completion(rubric, ".")
    yield "analysis: the labels", completion(rubric, "A B C")
    yield "analysis: the responses", completion(rubric, _each(item.responses))
    yield "analysis: the same thrice", completion(rubric, _each((weighed[2],) * 3))
    yield "analysis: the verdict alone", completion(rubric, f"C: {weighed[2]}")
    yield "analysis: numbers", completion(rubric, _each(("1", "2", "3")))
    yield "nothing but a verdict", "<verdict>C</verdict>"
    yield "no rubric", f"<rubric>\n</rubric>\n<analysis>\n{_each(weighed)}\n</analysis>\n<verdict>C</verdict>"


def _each(texts: tuple[str, ...]) -> str:
    return "\n".join(f"{label}: {text}" for label, text in zip(LABELS, texts, strict=False))
