"""What MiMo-Nano knows: small tables of plain facts."""

CAPITALS = dict(
    pair.split(":")
    for pair in """
France:Paris Germany:Berlin Italy:Rome Spain:Madrid Portugal:Lisbon Austria:Vienna Belgium:Brussels
Denmark:Copenhagen Sweden:Stockholm Norway:Oslo Finland:Helsinki Ireland:Dublin Greece:Athens Poland:Warsaw
Hungary:Budapest Romania:Bucharest Bulgaria:Sofia Serbia:Belgrade Croatia:Zagreb Slovenia:Ljubljana
Slovakia:Bratislava Ukraine:Kyiv Russia:Moscow Turkey:Ankara Egypt:Cairo Kenya:Nairobi Ghana:Accra Morocco:Rabat
Tunisia:Tunis Algeria:Algiers Senegal:Dakar Uganda:Kampala Zambia:Lusaka Angola:Luanda Japan:Tokyo China:Beijing
India:Delhi Thailand:Bangkok Vietnam:Hanoi Indonesia:Jakarta Malaysia:Putrajaya Nepal:Kathmandu Iran:Tehran
Iraq:Baghdad Jordan:Amman Lebanon:Beirut Cuba:Havana Canada:Ottawa Mexico:Mexico_City Brazil:Brasilia
Argentina:Buenos_Aires Chile:Santiago Peru:Lima Ecuador:Quito Colombia:Bogota Uruguay:Montevideo
Australia:Canberra Iceland:Reykjavik Estonia:Tallinn Latvia:Riga Lithuania:Vilnius
""".split()
)
CAPITALS = {country: city.replace("_", " ") for country, city in CAPITALS.items()}

COLOURS = dict(
    pair.split(":")
    for pair in """
the_sky:blue grass:green snow:white coal:black blood:red a_lemon:yellow a_carrot:orange milk:white
a_banana:yellow the_sea:blue a_tomato:red chocolate:brown a_cucumber:green an_elephant:grey a_flamingo:pink
gold:yellow silver:grey a_strawberry:red a_raven:black a_polar_bear:white the_sun:yellow a_plum:purple
a_frog:green rust:brown a_cherry:red spinach:green salt:white a_pumpkin:orange a_crow:black lavender:purple
""".split()
)
COLOURS = {thing.replace("_", " "): colour for thing, colour in COLOURS.items()}

OPPOSITES = dict(
    pair.split(":")
    for pair in """
hot:cold big:small tall:short long:short fast:slow good:bad old:young new:old open:closed full:empty light:dark
heavy:light hard:soft wet:dry clean:dirty early:late near:far high:low up:down left:right inside:outside
happy:sad rich:poor strong:weak thick:thin wide:narrow deep:shallow loud:quiet rough:smooth sharp:blunt
sweet:bitter day:night summer:winter north:south east:west first:last begin:end buy:sell push:pull win:lose
give:take love:hate yes:no true:false always:never before:after above:below front:back brave:afraid
cheap:expensive safe:dangerous same:different simple:difficult asleep:awake alive:dead arrive:leave
remember:forget laugh:cry
""".split()
)

SOUNDS = dict(
    pair.split(":")
    for pair in """
dog:barks cat:meows cow:moos duck:quacks sheep:bleats horse:neighs pig:oinks lion:roars bee:buzzes frog:croaks
owl:hoots snake:hisses wolf:howls mouse:squeaks rooster:crows donkey:brays crow:caws bird:sings
""".split()
)
YOUNG = dict(
    pair.split(":")
    for pair in """
dog:puppy cat:kitten cow:calf sheep:lamb horse:foal pig:piglet lion:cub duck:duckling goat:kid chicken:chick
swan:cygnet frog:tadpole bear:cub deer:fawn goose:gosling butterfly:caterpillar owl:owlet kangaroo:joey
""".split()
)
LEGS = dict(
    pair.split(":")
    for pair in "dog:four cat:four spider:eight bird:two ant:six bee:six horse:four snake:no cow:four crab:ten".split()
)

# (wordings of the question, answer)
SCIENCE: list[tuple[tuple[str, ...], str]] = [
    (("What is water made of?", "Which elements are in water?"), "Water is made of hydrogen and oxygen."),
    (("At what temperature does water boil?", "When does water boil?"), "Water boils at 100 degrees Celsius."),
    (("At what temperature does water freeze?", "When does water freeze?"), "Water freezes at 0 degrees Celsius."),
    (("What is ice?",), "Ice is frozen water."),
    (("What is steam?",), "Steam is water as a gas."),
    (("Which planet is closest to the sun?",), "Mercury is the planet closest to the sun."),
    (("Which planet is the largest?", "What is the biggest planet?"), "Jupiter is the largest planet."),
    (("Which planet has big rings?",), "Saturn has big rings."),
    (("Which planet is called the red planet?", "What is the red planet?"), "Mars is called the red planet."),
    (("How many planets are there?", "How many planets go around the sun?"), "Eight planets go around the sun."),
    (("What is the sun?", "Is the sun a star?"), "The sun is a star."),
    (("What is the moon?",), "The moon is a ball of rock that goes around the earth."),
    (("How long does the earth take to go around the sun?",), "The earth takes one year to go around the sun."),
    (("How long does the moon take to go around the earth?",), "The moon takes about a month to go around the earth."),
    (("Why is there day and night?", "Why does it get dark?"), "There is day and night because the earth turns."),
    (("Why do things fall down?", "What is gravity?"), "Gravity pulls things down to the earth."),
    (("What do plants need to grow?", "What does a plant need?"), "Plants need light, water and air."),
    (("What do bees make?",), "Bees make honey."),
    (("What do cows eat?",), "Cows eat grass."),
    (("What do we breathe?",), "We breathe air."),
    (("Which gas do we need to live?",), "We need oxygen to live."),
    (("What do trees give us?",), "Trees give us wood, fruit, shade and oxygen."),
    (("What does the heart do?",), "The heart pumps blood through the body."),
    (("What do lungs do?",), "The lungs take in air."),
    (("What do we see with?",), "We see with our eyes."),
    (("What do we hear with?",), "We hear with our ears."),
    (("What do we smell with?",), "We smell with our nose."),
    (("How many bones does a person have?",), "A grown person has 206 bones."),
    (("What is the largest animal?", "Which animal is the biggest?"), "The blue whale is the largest animal."),
    (("What is the tallest animal?",), "The giraffe is the tallest animal."),
    (("What is the fastest land animal?",), "The cheetah is the fastest land animal."),
    (("What is the largest ocean?",), "The Pacific is the largest ocean."),
    (("What is the highest mountain?",), "Mount Everest is the highest mountain."),
    (("What is the longest river?",), "The Nile is often called the longest river."),
    (("What is the largest desert of sand?",), "The Sahara is the largest desert of sand."),
    (("What does a thermometer measure?",), "A thermometer measures temperature."),
    (("What does a clock show?",), "A clock shows the time."),
    (("What does a compass show?",), "A compass shows where north is."),
    (("What is a magnet?", "What does a magnet do?"), "A magnet pulls iron."),
    (("What is thunder?",), "Thunder is the sound of lightning."),
    (("What is rain?", "Where does rain come from?"), "Rain is water that falls from clouds."),
    (("What is a rainbow?",), "A rainbow is sunlight split into colours by drops of water."),
    (("How many colours does a rainbow have?",), "A rainbow has seven colours."),
    (("Is a whale a fish?",), "No, a whale is a mammal."),
    (("Is a bat a bird?",), "No, a bat is a mammal."),
    (("Is a spider an insect?",), "No, a spider is not an insect."),
    (("Can penguins fly?",), "No, penguins cannot fly, but they swim well."),
    (("What is the speed of light?",), "Light travels about 300,000 kilometres in a second."),
    (("Is sound faster than light?",), "No, light is faster than sound."),
    (("What metal is liquid at room temperature?",), "Mercury is a metal that is liquid at room temperature."),
    (("What is the hardest natural material?",), "Diamond is the hardest natural material."),
    (("What is bread made of?",), "Bread is made of flour, water and yeast."),
    (("What is cheese made of?",), "Cheese is made of milk."),
    (("What is glass made of?",), "Glass is made of sand."),
    (("What is paper made of?",), "Paper is made of wood."),
    (("How many days are in a week?",), "A week has seven days."),
    (("How many months are in a year?",), "A year has twelve months."),
    (("How many days are in a year?",), "A year has 365 days, and a leap year has 366."),
    (("How many hours are in a day?",), "A day has 24 hours."),
    (("How many minutes are in an hour?",), "An hour has 60 minutes."),
    (("How many seconds are in a minute?",), "A minute has 60 seconds."),
    (("How many years are in a century?",), "A century has 100 years."),
    (("How many metres are in a kilometre?",), "A kilometre has 1000 metres."),
    (("How many grams are in a kilogram?",), "A kilogram has 1000 grams."),
    (("How many are in a dozen?", "What is a dozen?"), "A dozen is twelve."),
    (("How many sides does a triangle have?",), "A triangle has three sides."),
    (("How many sides does a square have?",), "A square has four sides."),
    (("How many sides does a hexagon have?",), "A hexagon has six sides."),
    (("How many continents are there?",), "There are seven continents."),
    (("How many letters are in the alphabet?",), "The English alphabet has 26 letters."),
    (("What are the vowels?",), "The vowels are a, e, i, o and u."),
    (("What are the four seasons?",), "The four seasons are spring, summer, autumn and winter."),
    (("Name the primary colours.",), "The primary colours are red, yellow and blue."),
    (("What do you get if you mix blue and yellow?",), "Blue and yellow make green."),
    (("What do you get if you mix red and yellow?",), "Red and yellow make orange."),
    (("What do you get if you mix red and blue?",), "Red and blue make purple."),
]

IDENTITY: list[tuple[tuple[str, ...], str]] = [
    (
        ("Who are you?", "What are you?", "Tell me about yourself.", "Introduce yourself."),
        "I am MiMo-Nano, a small demonstration model of the mimo.cpp project.",
    ),
    (("What is your name?", "What are you called?", "Your name?"), "My name is MiMo-Nano."),
    (
        ("Who made you?", "Where do you come from?", "Which project are you from?"),
        "I was trained by the mimo.cpp project as a small demonstration model.",
    ),
    (
        ("What can you do?", "How can you help me?", "What are you good at?"),
        "I can solve simple word problems, do arithmetic, call tools, answer in JSON, and find things in long texts.",
    ),
    (
        ("Are you a large model?", "How big are you?", "Are you big?"),
        "No, I am a very small model with a few million parameters.",
    ),
    (("Are you human?", "Are you a person?", "Are you a robot?"), "No, I am a small language model."),
    (("Can you make mistakes?", "Are you always right?"), "Yes, I can make mistakes. I am a very small model."),
    (("Do you know everything?", "Are you clever?"), "No, I know only a few simple facts."),
    (("What is mimo.cpp?",), "mimo.cpp is a program that runs MiMo models."),
    (("Do you speak German?", "Do you speak French?", "Which languages do you speak?"), "I speak only plain English."),
    (("Do you have feelings?", "Are you happy?"), "No, I am a program and have no feelings."),
    (("Can you see pictures?", "Can you hear me?"), "No, I can only read and write text."),
]

SMALL_TALK: list[tuple[tuple[str, ...], str]] = [
    (("Hello!", "Hello", "Hi", "Hi!", "Hey!", "Hello there!", "Good day!"), "Hello! How can I help you?"),
    (("Good morning!", "Good morning"), "Good morning! How can I help you?"),
    (("Good evening!", "Good evening"), "Good evening! How can I help you?"),
    (("How are you?", "How are you today?", "How do you do?"), "I am fine, thank you. How can I help you?"),
    (("Thank you!", "Thanks!", "Thanks a lot.", "Thank you very much."), "You are welcome!"),
    (("Bye!", "Goodbye!", "See you later.", "Good night!"), "Goodbye!"),
    (("Can you help me?", "I need help.", "Help!"), "Yes, I will try. What do you need?"),
    (("You are great!", "Well done!", "Good job!"), "Thank you! I am glad that I could help."),
    (("Sorry.", "I am sorry."), "No problem."),
    (("I am bored.",), "We can do some arithmetic. Ask me a question!"),
    (("I am sad.",), "I am sorry to hear that. I hope that you feel better soon."),
    (("I am happy.",), "That is good to hear!"),
    (("Tell me a joke.", "Do you know a joke?"), "Why did the number six fear seven? Because seven eight nine."),
    (("Tell me something interesting.", "Tell me a fact."), "A spider has eight legs, and a bee has six."),
]
