"""Words and sentence frames of the generated corpus: tables only.

In a frame [a|b] stands for one of the two, {slot} for a value of the story or the question at hand.
"""


def words(text: str) -> list[str]:
    return text.split()


def phrases(text: str) -> list[str]:
    return [phrase.strip() for phrase in text.split("|")]


def frames(text: str) -> list[str]:
    return [frame.strip() for frame in text.splitlines()]


def pairs(text: str) -> dict[str, str]:
    return dict(pair.split(":", 1) for pair in text.split())


GIRLS = words("""Anna Mia Lily Emma Rosa Clara Ella Nora Sara Ruby Ivy Alice Lucy Maya Zoe Hana Eva Tilda Mona Daisy \
Greta Amy
Olga Vera Kate Jane Polly Fern Hazel Nina""")
BOYS = words("""Tom Max Ben Sam Leo Jack Finn Noah Otto Hugo Peter Oscar Theo Milo Felix Adam Ravi Omar Luke Jonas \
Emil Carl Bo
Dan Tim Kofi Ned Paul Rudi Walter""")
HEROES = words("""dog cat rabbit fox mouse bear owl duck pony hedgehog squirrel frog lamb goat kitten puppy turtle \
badger robot
dragon penguin elephant lion crow donkey""")
PEOPLE = words("girl boy child baker sailor farmer king queen prince princess wizard painter gardener shepherd knight")
FEMALE = {"girl", "queen", "princess"}
MALE = {"boy", "king", "prince", "wizard", "knight"}
TRAITS = words("brave kind shy clever curious cheerful gentle lazy proud quiet hungry sleepy patient little old young")
PLACES = phrases("""the forest|the garden|the village|the old mill|the seashore|the mountain|the market|the castle|the \
river|
the meadow|the farm|the library|the hill behind the house|the harbour|the deep valley|the island|the kitchen""")
THINGS = phrases("""ball|lantern|kite|drum|key|hat|boat|bell|book|basket|ring|map|cake|apple|scarf|wooden box|flute|
feather|silver coin|button|mirror|umbrella|pear|clock|wagon|honey pot|shell|star lamp|paint box|warm coat""")
COLOURS = words("red blue green yellow white black brown grey orange purple pink golden silver")
WEATHERS = words("sunny rainy windy snowy cloudy foggy stormy warm cold")
CITIES = words("Paris London Rome Berlin Madrid Oslo Lisbon Vienna Cairo Tokyo Delhi Athens Dublin Prague Lima")
FOODS = words("bread soup rice cheese apples pears cake honey milk carrots beans eggs jam nuts pie plums tea butter")
JOBS = words("baker teacher farmer doctor sailor painter cook tailor gardener writer pilot nurse singer smith")
HOBBIES = phrases("reading|swimming|drawing|singing|cooking|dancing|fishing|running|painting|chess|music|gardening")
ABSTRACT = phrases("""friendship|a lost key|the moon|a rainy day|the sea|a birthday party|a long journey|winter|a \
hidden door|
sharing|courage|a magic tree|a broken toy|the stars|a secret|the first snow|a picnic|a storm at sea""")
HARD = phrases("""quantum physics|the stock market|tax law|brain surgery|computer chips|ancient Rome|chemistry|the \
news today|
football results|philosophy|rocket engines|history|medicine|the weather tomorrow|programming in C|politics""")
NUMBERS = words("zero one two three four five six seven eight nine ten eleven twelve")

GROUPS = {
    "animals": HEROES, "colours": COLOURS, "fruits": words("apple pear plum cherry grape peach orange lemon melon fig"),
    "vegetables": words("carrot potato onion pea bean cabbage leek turnip pumpkin"), "foods": FOODS, "jobs": JOBS,
    "cities": CITIES, "hobbies": HOBBIES, "birds": words("robin owl crow sparrow duck swan goose eagle swallow hen"),
    "trees": words("oak pine birch willow apple elm maple beech ash fir"),
    "things to wear": words("hat coat scarf shoes gloves shirt dress boots socks belt"),
    "flowers": words("rose daisy tulip lily violet poppy iris bluebell"),
    "tools": words("hammer saw spade rake axe needle brush ladder rope knife"), "weather words": WEATHERS,
    "days of the week": words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    "girls' names": GIRLS, "boys' names": BOYS, "rooms in a house": words("kitchen bedroom bathroom hall attic cellar"),
    "things in a kitchen": words("pot pan spoon cup plate oven table jug bowl kettle"),
}  # fmt: skip
CAPITALS = pairs("""France:Paris England:London Italy:Rome Germany:Berlin Spain:Madrid
Norway:Oslo Portugal:Lisbon Austria:Vienna Egypt:Cairo Japan:Tokyo India:Delhi Greece:Athens Ireland:Dublin Peru:Lima
Sweden:Stockholm Poland:Warsaw Russia:Moscow China:Beijing Denmark:Copenhagen Hungary:Budapest""")
SOUNDS = pairs("""dog:woof cat:meow cow:moo duck:quack sheep:baa horse:neigh pig:oink
mouse:squeak lion:roar owl:hoot crow:caw frog:croak bee:buzz hen:cluck snake:hiss""")
OPPOSITES = pairs("""hot:cold big:small up:down day:night happy:sad fast:slow old:young
wet:dry light:dark open:closed hard:soft good:bad early:late loud:quiet full:empty long:short rich:poor""")
COLOUR_OF = pairs("""grass:green snow:white the_sky:blue blood:red coal:black a_lemon:yellow
milk:white a_carrot:orange a_leaf:green the_sun:yellow a_plum:purple chocolate:brown the_sea:blue""")
HOMES = pairs("""fish:in_the_water bees:in_a_hive birds:in_a_nest bears:in_a_cave
rabbits:in_a_burrow cows:on_a_farm spiders:in_a_web horses:in_a_stable whales:in_the_sea dogs:in_a_house
foxes:in_a_den camels:in_the_desert penguins:on_the_ice owls:in_old_trees""")
DOES = pairs("""baker:bakes_bread teacher:teaches_children farmer:grows_food doctor:helps_sick_people
sailor:sails_on_ships painter:paints_pictures cook:makes_meals tailor:sews_clothes gardener:looks_after_plants
writer:writes_books pilot:flies_planes singer:sings_songs smith:works_with_iron""")
AFTER = {word: NUMBERS[i + 1] for i, word in enumerate(NUMBERS[:-1])}
FACTS: list[tuple[dict[str, str], str, str]] = [
    (CAPITALS, "What is the capital of {key}?", "The capital of {key} is {value}."),
    (CAPITALS, "Where is {value}?", "{value} is in {key}."),
    (CAPITALS, "[Which|What] country is {value} in?", "{value} is in {key}."),
    (SOUNDS, "What [does|sound does] a {key} [say|make]?", "A {key} says {value}."),
    (SOUNDS, "[Who|Which animal|What animal] says {value}?", "A {key} says {value}."),
    (OPPOSITES, "What is the opposite of {key}?", "The opposite of {key} is {value}."),
    (COLOUR_OF, "[What colour is|What color is|Which colour has] {key}?", "{key} is {value}."),
    (HOMES, "Where do {key} live?", "{key} live {value}."),
    (DOES, "What does a {key} do?", "A {key} {value}."),
    (DOES, "Who {value}?", "A {key} {value}."),
    (AFTER, "[What|Which number] comes after {key}?", "After {key} comes {value}."),
    (AFTER, "[What|Which number] comes before {value}?", "Before {value} comes {key}."),
]
RHYMES = phrases("""the sea is wide and blue/I think I'll sail it soon with you|the moon is high above the hill/and \
all the world is soft and still|
a little bird sat on a tree/and sang a merry song for me|the rain came down on roof and street/and made a puddle for \
my feet|
the snow fell white on field and town/it came so very softly down|a cat was sleeping in the sun/and dreaming of a \
mouse to run|
the wind went dancing through the grass/and waved to every cloud to pass|the stars came out to say good night/each one \
a tiny golden light|
the bees are busy all the day/they have no time to stop and play|an owl looked down with yellow eyes/and looked so \
very old and wise|
the river sings upon its way/it has so many things to say|my kite flew up into the sky/I never saw it fly so high""")
JOKES = phrases("""Why did the bee go to school? To learn to spell.|What has hands but cannot clap? A clock.|What has \
teeth but never bites? A comb.|
What gets wetter the more it dries? A towel.|Why did the clock go to the doctor? It had too much time on its hands.|
What can you catch but never throw? A cold.|What goes up when the rain comes down? An umbrella.""")

# ---------------------------------------------------------------- the grammar: [a|b] picks one, {slot} fills in

OPENINGS = frames("""[Once upon a time|Long ago|Many years ago|Once], [there was|there lived] {a_hero} [named|called] \
{name}{where}.
In {place} lived {a_hero} whose name was {name}.
{name} was {a_hero}. {He} lived [near|not far from] {place} [with {friend}, {a_friend}|all alone|and was never bored].
[One|On a] {weather} [morning|afternoon|evening][,|] {name} the {hero} went to {place}.
[It was|What] a {weather} day[.|!] {name} the {hero} [looked out of the window|put on {his} shoes|was tired of sitting \
still].
"[Where is|Who has taken|Has anybody seen] my {thing}?" [cried|asked|said] {name}. {name} was {a_hero}, and {he} \
[loved|needed] that {thing}.
This is the story of {name}, {a_hero}, and {his} {thing}.
Everybody in {place} knew {name}, the {trait} {hero}.
{name} and {friend} were [good|best|old] friends. {name} was {a_hero}, and {friend} was {a_friend}.
Nobody [believed|knew] that {a_hero} like {name} could [sing|dance|swim|bake bread|tell stories]. But {he} could.
When {name} the {hero} was [still small|very young], {his} [mother|father|grandmother|uncle] gave {him} a {thing}.
There is a small house by {place}. {name}, {a_hero}, lives there [still|to this day|all the year round].""")
WISHES = frames("""{name} had a {thing}, and {he} [took it everywhere|kept it under {his} bed|showed it to everyone|\
loved it more than anything].
More than anything, {name} wanted a {thing}.
[Every day|Each morning|All summer long] {he} [dreamed of|thought about|wished for] a {thing}.
{He} had never [seen|been to] {place2}, and {he} [often wondered|always wanted to know] what it was like.
One day {he} [found|saw|picked up] a {thing} [under a stone|beside the path|in the tall grass|behind the door].
{His} {thing} was [old|{colour}] [and a little bent|but very pretty|and it shone in the sun].
{He} was [going|on {his} way] to {place2} with a {thing} for {friend}.""")
TROUBLES = frames("""But one [morning|night|day] the {thing} was gone. {name} looked [under the bed|in the cupboard|in \
every corner|behind the door|in all {his} pockets], but it was not there.
Then a [great|terrible|sudden] [storm|wind] came, and the {thing} [flew away|fell into the river|was lost].
But the way was [long|dark|steep], and {name} [grew tired|lost the path|did not know where to go].
Then the {thing} was gone, and so was the {thing2} of {friend}, {a_friend}, who lived [next door|near {place}].
[Suddenly|All at once|Just then] {friend}, {a_friend}, [ran by|came along|jumped out from behind a tree] and [took|\
snatched] the {thing}.
The {thing} broke [in two|with a loud crack], and {name} [began to cry|did not know what to do|sat down on the ground].
But {friend}, {a_friend}, wanted the {thing} too, and they [quarrelled|shouted at each other|would not share].
It [rained|snowed] for [three|seven|ten] days, and there was [nothing left to eat|no fire in the house|no way to go \
home].
A [big|huge] stone lay [on|across] the road, and {he} could not [move it|get past it|climb over it].""")
TALK = frames(""""[Do not cry|Do not be sad|Do not worry]," said {friend}. "[I will help you|We will find it together|\
Two can do more than one]."
"[Please|Dear {friend}], [help me|come with me]," said {name}. "[Of course|Gladly|With all my heart]," [said|answered] \
{friend}.
"What is the matter?" asked {friend}. {name} told {fhim} [everything|the whole story|about the {thing}].
"I am [afraid|too small for this|so tired]," said {name}. "[You are stronger than you think|Take my hand|Rest a \
little]," said {friend}.
"[Who goes there?|Who are you?]" [called|asked] {friend}, {a_friend}. "[It is only me|My name is] {name}," said the \
{hero}.
"If you give me [some|a little] {food}, I will [help you|show you the way]," said {friend}. So {name} gave {fhim} [all \
{he} had|half of it].
{name} thought [for a long time|and thought]. "[I know!|I have it!|Now I know what to do,]" {he} [said|cried] at last.
Then {friend} [laughed|smiled] and said, "[Look behind you|Listen to the wind|Follow the river], {name}." """)
DEEDS = frames("""[So|Then] they [walked|went|ran] [all day|together] to {place2}, and there, [under a tree|beside the \
water|on a flat stone], lay the {thing}.
{name} [pushed|pulled] with all {his} might, and {friend} [helped|pushed too|pulled as well]. At last it [moved|worked].
They [asked|went to ask] [the old owl|the miller|the wise woman|the ferryman], who said, "[Look in|Go to] {place2}."
{He} [climbed up|crept in|looked down] [slowly|without a sound|as fast as {he} could], and [what do you think {he} \
saw? The {thing}!|there was the {thing}.]
{friend} [had|brought] [a rope|a ladder|some glue and string], and [before long|very soon] [all was well again|\
everything was as good as new].
{name} gave {friend} the {thing}, [because {he} was sorry|for {he} saw that {fhe} needed it more|and {friend} gave \
{him} a {thing2}].
They [worked|sat] [until the sun went down|till evening|the whole night], and [neither of them|nobody] said a word \
about being tired.
On the way home they [sang a song|ate {food} and {food2}|counted the stars|told each other stories].""")
ENDINGS = frames("""And from that day on, {name} and {friend} [were the best of friends|shared everything|were never \
lonely].
{name} was so [happy|glad] that {he} [danced|laughed out loud|could not sleep that night].
That evening they ate {food} and {food2} [by the fire|at the big table|under the stars], and [then they slept|everyone \
was content].
[And so|So] {name} learned that [it is good to share|a friend is better than a {thing}|even a small {hero} can do \
great things|it is never too late to say sorry].
"[Thank you|I shall never forget this], {friend}," said {name}. And {he} never did [forget it|forget].
{name} [hung|put] the {thing} [above the door|by {his} bed], and it is [there|hanging there] still.
[Then|At last] they went home, and [the moon shone on the road|the stars came out one by one|{his} mother had soup \
ready].
And if [they have not moved away|nothing has changed], they [still live|are living] near {place} today.
The end.""")
EXTRAS = frames("""The [sun|moon] was [shining|hidden behind a cloud], and [a bird sang|the wind was still|the grass \
was wet].
{name} was [not afraid|a little afraid], [for {he} was very {trait}|but {he} did not show it].
{friend} had a {colour} {thing2} and was very proud of it.
[Far away|Somewhere] a bell rang [three|five|twelve] times.
They [stopped to eat|shared] some {food}. It tasted [good|wonderful|better than ever].
{place_cap} was [quiet|full of people|dark and cold|bright with flowers] that day.
"[How odd|How lovely|Well, well]," [thought|said] {name}.""")

ARRIVALS = "[Just then|After a while|Soon|That day] [came {friend}, {a_friend}|{name} met {friend}, {a_friend}]."

ASK_STORY = """[Tell me a story about {topic}.|Tell me a [short |little |]story about {topic}|Write a [short |]story \
about {topic}.|
Can you tell me a story about {topic}?|I want to hear a story about {topic}.|Please [tell|write] a story about {topic}.|
[A|One] story about {topic}, please.|Do you know a story about {topic}?|Make up a [bedtime |]story about \
{topic}.]""".replace("\n", "")
SYSTEMS = phrases("""You are a helpful assistant.|You are a friendly assistant.|You are a kind and helpful teacher.|Be \
brief and polite.|
You answer questions for children.|You are a small demo model. Be honest.|Answer as well as you can.""")
SMALL_TALK: list[tuple[str, str]] = [
    ("[Hello|Hi|Hey|Good morning|Good evening|Hello there|Hi there][!|.|]",
     "[Hello|Hi|Good day][!|, nice to meet you!] [How can I help you?|What can I do for you?|Would you like a story?]"),
    ("[Say hello|Say hi|Greet me][.|]", "Hello!"),
    ("How are you[ today|]?", "I am [fine|very well|happy], thank you. [How are you?|And you?|]"),
    ("[Who|What] are you?",
     "I am a [small|little] demo model. [I can tell stories and answer simple questions.|I like stories.]"),
    ("What can you do?", "I can tell [short|simple] stories, make lists, write JSON and answer simple questions."),
    ("[Thank you|Thanks|Thanks a lot][!|.|]", "You are welcome[!|.]"),
    ("[Goodbye|Bye|See you|Good night][!|.|]",
     "[Goodbye|Good night|See you soon][!|, and sleep well.|, come back soon.]"),
    ("Tell me a joke[.|!|]", "{joke}"),
    ("[Do you know a joke|Can you tell me a joke]?", "[Yes!|Here is one:] {joke}"),
    ("What is your favourite [colour|color]?", "I like {colour} best."),
    ("What do you like to eat?", "I am a model and cannot eat, but {food} sounds nice."),
    ("[Are you|You are] a [robot|person|human|computer][?|, right?]", "I am a small language model."),
    ("[Tell me about|Explain|What do you know about] {hard}[.|]",
     "I am sorry, I am only a small demo model and know little about {hard}."),
    ("[What is|Why is] {hard}[ so important|]?",
     "I do not know much about {hard}. I am only a [small|little] demo model."),
    ("I am [sad|tired|bored] today.",
     "I am sorry to hear that. [Would you like a story?|I hope you feel better soon.]"),
    ("I am happy today[!|.]", "That is good to hear! [What happened?|Tell me more.]"),
    ("[Help|Help me][!|.|]", "Of course. What do you need?"),
    ("[Yes|Ok|Okay|No][!|.|]", "[All right.|Good.] What would you like to do [now|next]?"),
]  # fmt: skip
KINDS = {  # kinds of JSON objects, with their keys
    "person": words("name age city job hobbies"), "cat": words("name age colour owner"),
    "dog": words("name age color happy"), "book": words("title name year price"),
    "child": words("name age hobby food"), "city": words("city weather temperature"),
    "shop": words("name place items"), "order": words("id item count price"),
    "animal": words("kind name colour food"), "house": words("place colour owner"), "task": words("id title done"),
    "party": words("place year foods"), "weather report": words("city weather temperature"),
    "character": words("name kind trait place"), "list": words("title items count"),
}  # fmt: skip
