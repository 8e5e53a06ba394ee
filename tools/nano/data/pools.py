"""Names, places and words that the generators share."""

from __future__ import annotations

import random

NAMES = """
Aaron Abigail Ada Adam Adele Adrian Agnes Aisha Akira Alan Albert Alejandro Alex Alfred Alice Alina Amara Amber
Amelia Amina Amir Amy Ana Andre Andrea Andrew Angela Anika Anna Anthony Antonio Anya Ariel Arjun Arthur Asha Astrid
Aurora Ava Barbara Bella Ben Bernard Beth Bianca Bill Boris Brenda Brian Bruno Caleb Camila Carla Carlos Carmen
Caroline Cecilia Charles Charlotte Chen Chloe Chris Clara Claire Clement Colin Connor Cora Cyrus Daisy Damian Daniel
Daphne David Dana Dean Deborah Dennis Diana Diego Dmitri Dora Dorothy Duncan Dylan Edgar Edith Edward Elena Eli
Elias Elise Eliza Ella Ellen Elsa Emil Emily Emma Eric Esther Ethan Eva Evan Evelyn Farah Fatima Felix Fiona Flora
Florence Frances Francis Frank Fred Freya Gabriel Gavin Gemma George Gerald Gina Gloria Grace Greg Greta Gustav
Hannah Harold Harriet Harry Hassan Hazel Heather Hector Heidi Helen Helga Henry Hiro Holly Howard Hugo Ian Ida Ines
Ingrid Irene Iris Isaac Isabel Ivan Ivy Jack Jacob Jade James Jamal Jan Jane Janet Jason Jasmine Jean Jenny Jeremy
Jessica Joan Joel John Jonas Joseph Josephine Joy Juan Judith Julia Julian June Kai Karen Karim Karl Kate Keith
Kelly Ken Kevin Kiran Kofi Kurt Lara Laura Lauren Layla Lena Leo Leon Leonard Liam Lila Lily Linda Lisa Logan Lola
Louis Louise Luca Lucas Lucy Luis Luna Lydia Magnus Maia Malik Marco Margaret Maria Marie Mario Mark Marta Martin
Mary Mason Matilda Matthew Maurice Max Maya Megan Mei Mia Michael Miguel Mila Miles Miriam Mohamed Molly Monica
Morgan Nadia Naomi Nathan Neil Nell Nico Nina Noah Noor Nora Norman Oliver Olga Olivia Omar Oscar Otto Owen Pablo
Patricia Paul Paula Pedro Penny Peter Petra Philip Phoebe Pierre Priya Quentin Rachel Rafael Raj Ralph Ravi Rebecca
Renata Rhea Richard Rita Robert Robin Roger Roland Rosa Rose Rosie Ruby Rupert Ruth Ryan Sabina Sally Sam Samira
Samuel Sandra Sara Scott Sean Selma Serena Shirley Silas Simon Sofia Sonia Sophie Stefan Stella Stephen Steven Susan
Sven Sylvia Tamara Tara Ted Teresa Theo Thomas Tim Tina Toby Tom Tony Tristan Uma Ursula Valerie Vera Victor
Victoria Vincent Viola Violet Vivian Wade Walter Wanda Wendy Willa William Winston Xavier Yara Yasmin Yusuf Yuki
Zara Zoe
""".split()

SURNAMES = """
Abbott Adler Bailey Baker Barnes Becker Bell Bennett Bishop Blake Brooks Brown Burns Carter Chang Chapman Clark Cole
Cooper Costa Cruz Davis Dixon Dunn Ellis Evans Fischer Fisher Flores Foster Fox Garcia Gibson Gray Green Griffin
Hall Hansen Hart Hayes Hill Holt Hughes Hunter Ito Jensen Jones Kaur Keller Khan Kim King Klein Knight Kumar Lane
Larsen Lee Lewis Lopez Marsh Mason Meyer Miller Moore Morris Murphy Nash Nguyen Novak Olsen Ortiz Palmer Park Patel
Pearce Perez Porter Quinn Reed Reyes Rivera Roberts Ross Rossi Russo Santos Schmidt Shaw Silva Singh Smith Stone
Sullivan Suzuki Swan Tanaka Taylor Torres Turner Vega Wagner Walker Walsh Ward Weber West White Wolf Wong Wood
Wright Yamada Young Zhang
""".split()

CITIES = """
Aberdeen Accra Adelaide Algiers Amman Amsterdam Ankara Antwerp Athens Atlanta Auckland Austin Baghdad Baku Baltimore
Bangkok Barcelona Basel Beijing Beirut Belfast Belgrade Bergen Berlin Bern Bilbao Birmingham Bogota Bologna Boston
Bremen Brisbane Bristol Brussels Bucharest Budapest Cairo Calgary Canberra Cardiff Casablanca Chicago Cologne
Copenhagen Cork Dakar Dallas Damascus Delhi Denver Detroit Dhaka Doha Dresden Dubai Dublin Dundee Durban Edinburgh
Florence Frankfurt Galway Geneva Genoa Ghent Glasgow Granada Graz Hamburg Hanoi Harare Havana Helsinki Houston
Istanbul Jakarta Jerusalem Kabul Kampala Karachi Kiev Kingston Krakow Kyoto Lagos Leeds Leipzig Lima Lisbon
Liverpool London Luanda Lusaka Lyon Madrid Malaga Manchester Manila Marseille Melbourne Memphis Miami Milan Minsk
Montreal Moscow Mumbai Munich Nagoya Nairobi Nantes Naples Nashville Nice Osaka Oslo Ottawa Oxford Palermo Paris
Perth Phoenix Porto Prague Pretoria Quebec Quito Reykjavik Riga Riyadh Rome Rotterdam Salzburg Santiago Sarajevo
Seattle Seoul Seville Shanghai Sheffield Singapore Sofia Stockholm Stuttgart Sydney Taipei Tallinn Tampa Tehran
Tirana Tokyo Toronto Toulouse Tripoli Tunis Turin Utrecht Valencia Vancouver Venice Vienna Vilnius Warsaw Wellington
Winnipeg York Zagreb Zurich
""".split()

OBJECTS = """
apples bananas beans bread butter cabbage candles carrots cheese cherries chocolate coffee cream cups eggs envelopes
flour flowers garlic grapes honey jam juice lamps lemons lettuce matches milk mushrooms mustard napkins noodles nuts
oil olives onions oranges paper pasta peaches pears peas pencils pepper plates plums potatoes rice salad salt soap
socks soup spinach spoons stamps sugar tape tea tomatoes towels vinegar water yogurt
""".split()

NOUNS = """
anchor apple arrow badge basket bell bird boat book bottle box bread bridge brush bucket button cake camera candle
car card carpet castle cat chair clock cloud coat coin comb corner cow crown cup curtain desk dog door dress drum
duck ear egg engine eye farm feather fence field finger fire fish flag flower foot forest fork fox frog garden gate
glass glove goat grass guitar hammer hand hat hill horse house island jacket jar key kite knife ladder lake lamp
leaf letter lion lock map market mirror monkey moon mountain mouse needle nest nose ocean orange oven page paint
paper pencil piano picture pillow pipe plate pocket pond potato queen rabbit rain ring river road robot rock roof
room rope rose sail sand school seed sheep shell ship shirt shoe shop snow sock spoon star stone storm street sugar
sun table tail tent tiger tower town train tree truck umbrella valley village wall watch water wheel wind window
wing winter wolf wood
""".split()

ADJECTIVES = """
able bitter black blue bold brave bright broad brown calm cheap clean clear clever cold cool dark deep dry eager
early empty fair fast fine firm flat fresh full gentle glad golden good grand great green grey happy hard heavy high
honest hot huge keen kind large late lazy light little long loud low lucky mild narrow neat new nice noisy old open
orange pale plain polite poor pretty proud quick quiet rare ready red rich round rough royal sad safe sharp short
shy silent silver simple slow small smart smooth soft sour strange strong sunny sweet tall thick thin tiny tired
warm weak wet white wide wild wise yellow young
""".split()

VERBS = """
asked bought built called carried caught chose cleaned closed cooked counted covered crossed drew dropped followed
found gave helped hid kept left liked lost made met moved opened painted passed picked planted played pulled pushed
reached read saved saw sold sent showed stopped took touched turned used visited washed watched wore
""".split()

WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]

_ONSETS = "b br c ch cl d dr f fl g gr h j k l m n p pl qu r s sh st t th tr v w y z".split()
_VOWELS = "a e i o u ai ea ee oo ou".split()
_ENDS = ["", "", "l", "n", "r", "s", "t", "m", "nd", "rk", "st", "x"]


def made_up(rng: random.Random, syllables: int = 2) -> str:
    """A word that is in no list, so that copying it needs reading it."""
    return "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + (rng.choice(_ENDS) if last else "")
        for last in [*[False] * (syllables - 1), True]
    )


def digits(rng: random.Random, count: int) -> str:
    """`count` random digits, the first not zero."""
    return str(rng.randint(10 ** (count - 1), 10**count - 1))


def join_and(items: list[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]
