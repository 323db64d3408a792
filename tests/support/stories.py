"""Made-up text: stories of a small world.

Each story keeps to one person, one trade, one season and one animal, so that a sentence can be told from what was
said before it. The same number always gives the same story.
"""

import random
from collections.abc import Iterator

PEOPLE = {
    "Mara": "she", "Tomas": "he", "Edith": "she", "Oskar": "he", "Lena": "she", "Hugo": "he", "Ida": "she",
    "Felix": "he", "Nora": "she", "Emil": "he", "Clara": "she", "Jonas": "he", "Vera": "she", "Anton": "he",
}  # fmt: skip
TOWNS = ("Elmford", "Stonebridge", "Millbrook", "Harrowgate", "Ashby", "Fernhill", "Old Harbour", "Westmere")
TRADES = {  # trade: workplace, material, what is done with it, product, who needs it
    "baker": ("bakery", "flour", "kneads the dough", "bread", "hungry children"),
    "carpenter": ("workshop", "wood", "saws the boards", "chairs", "the inn"),
    "smith": ("forge", "iron", "hammers the hot metal", "horseshoes", "the farmers"),
    "weaver": ("weaving room", "wool", "spins the yarn", "blankets", "old people"),
    "gardener": ("garden", "seeds", "waters the young plants", "vegetables", "the market"),
    "potter": ("pottery", "clay", "turns the wheel", "bowls", "the kitchens of the town"),
    "printer": ("printing house", "paper", "sets the letters", "books", "the school"),
    "fisher": ("boat", "nets", "mends the ropes", "fish", "the cooks"),
}
SEASONS = {  # season: sky, ground, pastime
    "winter": ("snow falls from a grey sky", "the river is frozen", "skates on the ice"),
    "spring": ("warm rain falls in the afternoon", "the first flowers open", "walks in the green fields"),
    "summer": ("the sun burns until late in the evening", "the roads are dusty", "swims in the lake"),
    "autumn": ("the wind blows the leaves away", "the apples are ripe", "gathers mushrooms in the forest"),
}
ANIMALS = {  # animal: sound, food, place
    "dog": ("barks", "bones", "by the door"),
    "cat": ("purrs", "milk", "near the stove"),
    "goat": ("bleats", "grass", "behind the house"),
    "horse": ("neighs", "hay", "in the stable"),
    "duck": ("quacks", "bread crumbs", "on the pond"),
}


def stories(count: int, seed: int = 0) -> Iterator[str]:
    """`count` stories, one sentence a line."""
    for index in range(count):
        yield "\n".join(story(random.Random(f"{seed}:{index}")))


def story(draw: random.Random) -> list[str]:
    """The sentences of one story."""
    name, they = draw.choice(list(PEOPLE.items()))
    trade, (place, material, work, product, buyers) = draw.choice(list(TRADES.items()))
    season, (sky, ground, pastime) = draw.choice(list(SEASONS.items()))
    animal, (sound, food, spot) = draw.choice(list(ANIMALS.items()))
    town, them = draw.choice(TOWNS), {"she": "her", "he": "his"}[they]
    opening = draw.choice((f"{name} is a {trade} in {town}.", f"In {town} there lives a {trade} named {name}."))
    about_work = [
        f"Every morning {they} goes to the {place} and {work}.",
        f"A good {trade} needs {material}, and {name} buys the best {material} in {town}.",
        f"The {product} from {them} {place} are known in every village around {town}.",
        f"In the evening {they} carries the {product} to {buyers}.",
        f"Nobody in the {place} knows more about {material} than {name}.",
    ]
    about_season = [
        f"It is {season} now, and {sky}.",
        f"In {season} {ground}, so there is less work in the {place}.",
        f"On Sundays in {season} {name} {pastime}.",
    ]
    about_animal = [
        f"{name} has a {animal} that sleeps {spot}.",
        f"When the {animal} is hungry it {sound}, and {name} brings it {food}.",
        f"The {animal} likes {food} more than anything else.",
    ]
    parts = [draw.sample(part, draw.randint(2, len(part))) for part in (about_work, about_season, about_animal)]
    draw.shuffle(parts)
    closing = draw.choice((f"So the days of the {trade} go by.", f"{name} is happy with {them} life in {town}."))
    return [opening, *(sentence for part in parts for sentence in part), closing]
