"""Names, nouns and other words of the generated problems. Test names never occur in training problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

TRAIN_GIRLS = """Abby Ada Aisha Alina Amara Amelia Amina Amy Ana Anita Anya April Ava Bella Beth Bianca Brenda Bridget Carla Carmen
Chloe Claire Daisy Dana Daria Diana Dora Eden Elena Ella Elsa Erin Eva Faith Fatima Fiona Freya Gina Gloria Hana Hazel Heidi Holly
Ida Ines Iris Isla Ivy Jade Jasmine Jenna Joy Julia June Kaya Keira Kim Lara Laura Lena Lily Lina Lola Lucia Luna Lydia Maya Mei Mia
Mila Mina Nadia Naomi Nina Nora Olga Olive Paula Penny Petra Pia Priya Rita Rosa Ruby Sadie Sana Sara Selma Sofia Stella Tara Tess
Tina Uma Vera Violet Wendy Yara Zara Zoe""".split()
TRAIN_BOYS = """Aaron Abel Adam Ahmed Alan Alex Ali Amir Andre Anton Arjun Ben Blake Boris Brian Bruno Caleb Carlos Chen Cody Colin
Dan Dario David Dean Derek Diego Dylan Eli Elias Emil Enzo Eric Ethan Evan Felix Finn Gabe Gavin Glen Grant Gus Hamza Hans Hugo Ian
Igor Isaac Ivan Jake Jamal Jason Javier Joel Jonas Jose Juan Karl Keith Kevin Kofi Kyle Lars Leo Liam Logan Luca Luis Marco Mario
Mateo Max Miles Milo Nate Nico Noah Omar Oscar Otto Owen Pablo Pedro Rafael Raj Ravi Ray Rico Roman Ryan Sami Sean Seth Simon Tariq
Theo Tim Toby Tyler Victor Wade Will Yusuf Zack""".split()
TEST_GIRLS = "Alice Anna Clara Emily Emma Grace Helen Jane Kate Lucy Mary Rose Sarah".split()
TEST_BOYS = "Arthur Charles Edward Frank George Henry Jack James John Paul Peter Tom".split()

PRONOUNS = {"girl": ("she", "She", "her", "Her"), "boy": ("he", "He", "his", "His")}  # subject and possessive

IRREGULAR = {"scarf": "scarves", "foot": "feet", "inch": "inches", "child": "children", "person": "people", "loaf": "loaves", "shelf": "shelves",
             "box": "boxes", "dish": "dishes", "bench": "benches", "peach": "peaches", "radish": "radishes", "bus": "buses",
             "strawberry": "strawberries", "cherry": "cherries", "berry": "berries", "class": "classes", "leaf": "leaves", "pouch": "pouches",
             "toy bus": "toy buses", "watch": "watches", "dress": "dresses", "brush": "brushes"}


def plural(singular: str) -> str:
    return IRREGULAR.get(singular, singular + "s")


class Noun(str):
    """The plural as text, with the singular beside it."""

    one: str

    def __new__(cls, singular: str) -> Noun:
        noun = super().__new__(cls, plural(singular))
        noun.one = singular
        return noun

    @property
    def A(self) -> str:  # noqa: N802
        return self.a.capitalize()

    @property
    def a(self) -> str:
        return f"{'an' if self.one[0] in 'aeiou' else 'a'} {self.one}"


def _nouns(text: str) -> list[Noun]:
    return [Noun(word.strip()) for word in text.replace("\n", " ").split(",")]


# Every slot {thing}, {thing2}, {box} ... of a template is filled from the list of that name.
NOUNS: dict[str, list[Noun]] = {
    "thing": _nouns("""apple, orange, pencil, marble, sticker, card, button, shell, stamp, crayon, book, toy car, balloon, cookie,
        pen, peach, plum, lemon, eraser, badge, postcard, bead, comic book, puzzle, ball, flower, rock, walnut, acorn, leaf, feather,
        egg, muffin, cupcake, magnet, coin, paper star, photo, toy bus, candy bar, pear, banana, carrot, block, doll, whistle"""),
    "bright": _nouns("marble, bead, pen, crayon, balloon, button, ball, sticker, card, flower, feather, ribbon, magnet, toy car"),
    "item": _nouns("""notebook, pen, ruler, cup, plate, hat, scarf, puzzle, candle, mug, lamp, towel, shirt, belt, toy car, basket,
        poster, clock, bowl, pillow, brush, vase, watch, dress, umbrella, backpack, board game, picture frame, blanket"""),
    "box": _nouns("box, bag, basket, crate, bucket, case, packet, chest"),
    "fruit": _nouns("apple, peach, pear, plum, cherry, lemon, strawberry, orange, pumpkin, melon, carrot, onion, radish, turnip"),
    "baked": _nouns("cookie, muffin, cupcake, roll, biscuit, tart, donut, scone, pancake, waffle, brownie, bun"),
    "craft": _nouns("bracelet, necklace, kite, scarf, hat, toy, card, basket, poster, mask, paper bird, candle, bookmark"),
    "goal": _nouns("bike, tablet, guitar, skateboard, telescope, tent, camera, drum, phone, scooter, violin, desk"),
    "friend": _nouns("friend, cousin, classmate, neighbor, child"),
    "vehicle": _nouns("car, truck, train, bus, van"),
    "part": _nouns("toy, bolt, bottle, chair, lamp, tile, brick, shoe, clock, spoon"),
    "text": _nouns("book, novel, magazine, report, diary"),
    "length": _nouns("meter, foot, yard"),
    "far": _nouns("mile, kilometer"),
}
WORDS: dict[str, list[str]] = {
    "color": ["red", "blue", "green", "yellow", "white", "black", "purple"],
    "job": ["bakery", "cafe", "library", "farm", "garage", "bookstore", "zoo", "museum", "hotel", "pet shop"],
    "sport": ["soccer", "tennis", "chess", "hockey", "basketball", "swimming"],
    "strip": ["rope", "ribbon", "wire", "string", "tape"],
    "pot": ["tank", "pool", "barrel", "pond", "tub"],
    "grower": ["tree", "sunflower", "bean plant", "corn plant", "vine"],
}

# More of them for training: the test split keeps to the lists above.
_MORE_NOUNS: dict[str, list[Noun]] = {
    "thing": _nouns("""ticket, pebble, ring, spoon, nut, bottle cap, key, candle, grape, kiwi, bean, seed, drawing, letter, lollipop,
        pinecone, seashell, bolt, jewel, ribbon, medal, chestnut, poster, envelope, straw, token, tile, cork, bow, stone, map, arrow,
        whistle, cracker, lime, fig, robot, puppet, bookmark, lantern"""),
    "bright": _nouns("bow, shirt, lantern, kite, hat, bowl, cup, brick, sock, tile, bottle, pencil, candle, flag"),
    "item": _nouns("""kettle, jar, pan, fork, tray, rug, mirror, jacket, sweater, wallet, radio, lock, broom, teapot, mat, bottle, helmet,
        ladder, cushion, hammer, calendar, bucket, drum, tent, pot, flute, saddle, apron, oven mitt"""),
    "box": _nouns("tin, sack, jar, drawer, trunk, carton, tub, bin, barrel, pouch"),
    "fruit": _nouns("apricot, fig, lime, grape, bean, cucumber, pepper, eggplant, cabbage, beet, nectarine, coconut, avocado, leek, pineapple"),
    "baked": _nouns("pretzel, bagel, pie, croissant, dumpling, cake, wafer, doughnut"),
    "craft": _nouns("quilt, pillow, vase, lantern, puppet, bowl, mug, wreath, earring, sweater, belt, drawing, doll, box"),
    "goal": _nouns("piano, laptop, kayak, saddle, printer, boat, keyboard, trumpet, drone, oven, computer, television, sofa, clarinet"),
    "friend": _nouns("sister, brother, teammate, guest, nephew, niece, colleague"),
    "vehicle": _nouns("tractor, taxi, tram, motorboat, scooter"),
    "part": _nouns("cup, button, plate, key, screw, wheel, pipe, spring, bulb, pencil, helmet, nail, zipper"),
    "text": _nouns("poem, guide, journal, comic, script"),
}
_MORE_WORDS: dict[str, list[str]] = {
    "color": ["pink", "brown", "gray", "golden", "silver"],
    "job": ["shop", "school", "market", "bank", "restaurant", "theater", "hospital", "station"],
    "sport": ["volleyball", "baseball", "golf", "rugby", "badminton", "football"],
    "strip": ["cable", "hose", "chain", "cord", "board"],
    "pot": ["bucket", "bathtub", "fountain", "basin", "cistern"],
    "grower": ["tulip", "tomato plant", "pumpkin plant", "pine"],
}


def _more(words: Sequence[str], others: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*words, *others]))


# The words of every slot, by split.
FILLERS: dict[str, Mapping[str, Sequence[str]]] = {
    "test": {**NOUNS, **WORDS},
    "train": {**{kind: _more(words, _MORE_NOUNS.get(kind, [])) for kind, words in NOUNS.items()},
              **{kind: _more(words, _MORE_WORDS.get(kind, [])) for kind, words in WORDS.items()}},
}
