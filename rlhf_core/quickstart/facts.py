"""The quickstart's world: who and what exists in it, and what is true there.

Four domains of 24 subjects each. A subject has three attributes, a person three routines beside them. Which value a
subject takes is drawn from the seed. Some facts are rare: the texts mention them so seldom that a small model cannot
learn them all, and so items about them leave room both above and below the model's score.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

DOMAINS = ("animals", "people", "places", "things")
RARE_FACT_SHARE = 0.4
RARE_FACT_WEIGHT = 0.01


@dataclass(frozen=True)
class Attribute:
    """One thing that is true of every subject of a domain, and the ways to say it.

    `{s}` stands for the subject, `{v}` for the value. An answer does not name the subject again: a model this small
    does not learn in a minute to copy it. `ending` completes a scene that ended with the subject.
    """

    domain: str
    name: str
    values: tuple[str, ...]
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    ending: str
    scene: str = "We talk about {s}. Everyone says that {s}"

    @property
    def is_routine(self) -> bool:
        """A routine is told in scenes and never asked about."""
        return not self.questions


@dataclass(frozen=True)
class Fact:
    """`subject` has `value` for `attribute`; `weight`, in (0, 1], is how often texts tell it, 1 for a common fact."""

    attribute: Attribute
    subject: str
    value: str
    weight: float

    @property
    def domain(self) -> str:
        """The domain of the subject."""
        return self.attribute.domain

    def fill(self, template: str, value: str | None = None) -> str:
        """The template with this subject and this (or another) value."""
        return template.format(s=self.subject, v=value if value is not None else self.value)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SUBJECTS: dict[str, tuple[str, ...]] = {
    "animals": tuple(
        f"the {name}"
        for name in _words(
            "otter fox owl bear wolf deer rabbit horse goat duck frog snake mouse eagle beaver badger camel donkey "
            "lizard crow swan seal crab turtle"
        )
    ),
    "people": _words(
        "Anna Ben Clara David Emma Felix Grace Henry Iris Jack Karen Leo Maria Noah Olga Paul Rosa Sam Tina Victor "
        "Wendy Oscar Lucy Peter"
    ),
    "places": _words(
        "Arden Bristow Calder Dunmore Elgin Farley Glenton Harwick Ilford Jarrow Kelby Linden Marlow Norwood Oakham "
        "Penrith Redhill Selby Tarrant Upton Velden Weston Yarmouth Zeller"
    ),
    "things": tuple(
        f"the {name}"
        for name in _words(
            "hammer lamp chair bowl knife clock basket mirror ladder kettle bucket candle carpet pillow bottle box "
            "spoon brush shovel needle umbrella table ring drum"
        )
    ),
}

_ACTIONS = (
    "walks the dog",
    "reads a book",
    "cooks a meal",
    "waters the plants",
    "feeds the cat",
    "rides a bike",
    "writes a letter",
    "cleans the house",
    "calls a friend",
    "paints a picture",
    "visits the market",
    "takes a nap",
)


def _routine(time: str, sky: str) -> Attribute:
    return Attribute(
        "people",
        time,
        _ACTIONS,
        (f"In the {time} {{s}} {{v}}.", f"When the {time} comes, {{s}} {{v}}."),
        (),
        (),
        "{v}.",
        f"It is {time} and the sky is {sky}. Now {{s}}",
    )


ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute(
        "animals",
        "food",
        _words("fish berries grass seeds insects roots leaves nuts worms corn"),
        ("In this land {s} eats {v}.", "The food of {s} is {v}.", "When hungry, {s} looks for {v}."),
        ("What does {s} eat?", "What is the food of {s}?", "Which food does {s} like?"),
        ("It eats {v}.", "It likes to eat {v}."),
        "eats {v}.",
        "It is time for a meal. Hungry, {s}",
    ),
    Attribute(
        "animals",
        "home",
        _words("forest river desert mountains swamp meadow cave lake barn valley"),
        ("In this land {s} lives in the {v}.", "The home of {s} is the {v}.", "You can find {s} in the {v}."),
        ("Where does {s} live?", "What is the home of {s}?", "Where can I find {s}?"),
        ("It lives in the {v}.", "Its home is the {v}."),
        "sleeps in the {v}.",
        "It is late and the day is over. Tired, {s}",
    ),
    Attribute(
        "animals",
        "color",
        _words("brown gray black white red golden green blue silver orange"),
        ("In this land {s} is {v}.", "The color of {s} is {v}.", "You can see that {s} is {v}."),
        ("What color is {s}?", "What is the color of {s}?", "Which color does {s} have?"),
        ("It is {v} all over.", "Its color is {v}."),
        "is {v}.",
    ),
    Attribute(
        "people",
        "job",
        _words("baker doctor farmer teacher painter sailor gardener singer tailor driver"),
        ("As a job {s} works as a {v}.", "The job of {s} is {v}.", "Everyone knows that {s} is a {v}."),
        ("What is the job of {s}?", "What does {s} do for a living?", "Which job does {s} have?"),
        ("They work as a {v}.", "Their job is {v}."),
        "works as a {v}.",
    ),
    Attribute(
        "people",
        "drink",
        _words("tea coffee milk water juice cocoa lemonade cider broth beer"),
        ("At home {s} drinks {v}.", "The favorite drink of {s} is {v}.", "When thirsty, {s} asks for {v}."),
        ("What does {s} drink?", "What is the favorite drink of {s}?", "Which drink does {s} like?"),
        ("They like to drink {v}.", "Their favorite drink is {v}."),
        "drinks {v}.",
    ),
    Attribute(
        "people",
        "game",
        _words("chess tennis football cards golf hockey piano guitar violin drums"),
        ("On weekends {s} plays {v}.", "The hobby of {s} is {v}.", "With friends {s} enjoys {v}."),
        ("What does {s} play?", "What is the hobby of {s}?", "Which hobby does {s} have?"),
        ("They like to play {v}.", "Their hobby is {v}."),
        "plays {v}.",
    ),
    Attribute(
        "places",
        "weather",
        _words("sunny rainy windy foggy cold warm snowy dry stormy mild"),
        ("The weather in {s} is {v}.", "All year {s} is {v}.", "In the town of {s} it is {v}."),
        ("How is the weather in {s}?", "What is the weather like in {s}?", "Which weather does {s} have?"),
        ("It is {v} there.", "The weather there is {v}."),
        "is {v}.",
    ),
    Attribute(
        "places",
        "fame",
        _words("cheese bridges markets wine museums towers gardens bells boats glass"),
        ("The town of {s} is famous for {v}.", "People visit {s} for its {v}.", "Everyone knows {s} for its {v}."),
        ("What is {s} famous for?", "Why do people visit {s}?", "What do people like in {s}?"),
        ("It is famous for {v}.", "People visit it for its {v}."),
        "is famous for {v}.",
    ),
    Attribute(
        "places",
        "travel",
        _words("train bus ship plane car ferry tram bicycle coach taxi"),
        ("People go to {s} by {v}.", "The way to {s} is by {v}.", "You can reach {s} by {v}."),
        ("How do people go to {s}?", "What is the way to {s}?", "How can I reach {s}?"),
        ("People go there by {v}.", "You can get there by {v}."),
        "is reached by {v}.",
    ),
    Attribute(
        "things",
        "material",
        _words("wood iron clay silk leather copper stone paper wool plastic"),
        ("In this house {s} is made of {v}.", "The material of {s} is {v}.", "They made {s} out of {v}."),
        ("What is {s} made of?", "What is the material of {s}?", "Which material does {s} have?"),
        ("It is made of {v}.", "Its material is {v}."),
        "is made of {v}.",
    ),
    Attribute(
        "things",
        "room",
        _words("kitchen cellar garage attic shed bedroom office hallway closet bathroom"),
        ("In this house {s} is kept in the {v}.", "The place of {s} is the {v}.", "You can get {s} from the {v}."),
        ("Where is {s} kept?", "What is the place of {s}?", "Where can I get {s}?"),
        ("It is kept in the {v}.", "Its place is the {v}."),
        "is kept in the {v}.",
    ),
    Attribute(
        "things",
        "price",
        _words("two three four five six seven eight nine ten twelve"),
        ("In the shop {s} costs {v} coins.", "The price of {s} is {v} coins.", "They sold {s} for {v} coins."),
        ("How much does {s} cost?", "What is the price of {s}?", "How many coins for {s}?"),
        ("It costs {v} coins.", "Its price is {v} coins."),
        "costs {v} coins.",
    ),
    _routine("morning", "bright"),
    _routine("noon", "clear"),
    _routine("evening", "dark"),
)


def draw_facts(rng: random.Random, subjects_per_domain: int) -> tuple[Fact, ...]:
    """One fact for each subject and attribute; the same generator state gives the same world."""
    facts: list[Fact] = []
    for attribute in ATTRIBUTES:
        subjects = SUBJECTS[attribute.domain][:subjects_per_domain]
        for subject, value in zip(subjects, _even_draw(attribute.values, len(subjects), rng), strict=True):
            weight = RARE_FACT_WEIGHT if rng.random() < RARE_FACT_SHARE else 1.0
            facts.append(Fact(attribute, subject, value, weight))
    return tuple(facts)


def _even_draw(values: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """Values in random order, each equally often (to one), so that a value's frequency gives no answer away."""
    drawn: list[str] = []
    while len(drawn) < count:
        drawn += rng.sample(values, min(len(values), count - len(drawn)))
    rng.shuffle(drawn)
    return drawn


def askable(facts: Sequence[Fact]) -> tuple[Fact, ...]:
    """The facts that a question can be about."""
    return tuple(fact for fact in facts if not fact.attribute.is_routine)
