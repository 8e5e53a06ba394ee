"""The functions that requests are made for: names, arguments, wordings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import tool_values as v

STRING: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}
BOOLEAN: dict[str, Any] = {"type": "boolean"}
STRINGS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}


def enum(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


def record(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


@dataclass(frozen=True)
class Parameter:
    """An argument. `names` and `descriptions` are alternatives; an optional one is asked for by one of `clauses`."""

    names: tuple[str, ...]
    schema: dict[str, Any]
    make: v.ValueMaker
    descriptions: tuple[str, ...]
    clauses: tuple[str, ...] = ()

    @property
    def required(self) -> bool:
        return not self.clauses


@dataclass(frozen=True)
class Function:
    """`requests` have slots {0}, {1}.. for the required arguments in order. `many` asks for one call a value of
    argument 0. `result` makes a tool result: (JSON text of the result, answer), with slots as in requests and {n}, {w}
    for a random number and word."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    requests: tuple[str, ...]
    many: tuple[str, ...] = ()
    results: tuple[tuple[str, str], ...] = field(default=())


CURRENCIES = ("USD", "EUR", "GBP", "JPY", "CHF", "CAD", "AUD", "CNY", "INR", "SEK")
LANGUAGES = ("French", "German", "Spanish", "Italian", "Dutch", "Polish", "Greek", "Swedish", "Japanese", "Korean")
ROOMS = ("kitchen", "bedroom", "bathroom", "hall", "garage", "office", "attic", "garden")

FUNCTIONS: tuple[Function, ...] = (
    Function(
        ("get_weather", "weather_now", "current_weather"),
        ("Get the current weather of a city", "Current weather in a place", "Look up the weather"),
        (
            Parameter(
                ("city", "location", "place"), STRING, v.city, ("Name of the city", "City to look up", "The place")
            ),
            Parameter(
                ("unit", "units", "scale"),
                enum("celsius", "fahrenheit"),
                v.one_of("celsius", "fahrenheit"),
                ("Unit of temperature", "Temperature scale"),
                (" in {}", ", please use {}", ", unit {}"),
            ),
        ),
        (
            "What is the weather in {0}",
            "How is the weather in {0} now",
            "Tell me the weather in {0}",
            "Weather for {0}",
            "I need the current weather of {0}",
            "Is it cold in {0} today",
            "Please check the weather in {0}",
        ),
        ("What is the weather in {0}", "Tell me the weather in {0}", "Weather for {0}", "Compare the weather in {0}"),
        (
            ('{{"temperature": {n}, "sky": "{w}"}}', "It is {n} degrees and {w} in {0}."),
            ('{{"temp": {n}}}', "The temperature in {0} is {n} degrees."),
        ),
    ),
    Function(
        ("get_time", "local_time", "time_in_city"),
        ("Get the local time of a city", "Local time in a place"),
        (Parameter(("city", "location", "town"), STRING, v.city, ("Name of the city", "City to look up")),),
        (
            "What time is it in {0}",
            "Tell me the time in {0}",
            "Current time in {0}",
            "How late is it in {0} now",
            "I want to know the local time in {0}",
        ),
        ("What time is it in {0}", "Tell me the local time in {0}", "Current time in {0}"),
        (('{{"time": "{t}"}}', "It is {t} in {0}."),),
    ),
    Function(
        ("convert_currency", "exchange_money", "currency_convert"),
        ("Convert an amount of money to another currency", "Exchange money between currencies"),
        (
            Parameter(("amount", "value", "sum"), NUMBER, v.number(1, 5000), ("Amount of money", "How much")),
            Parameter(
                ("from_currency", "source", "from"),
                enum(*CURRENCIES),
                v.one_of(*CURRENCIES),
                ("Currency to convert from",),
            ),
            Parameter(
                ("to_currency", "target", "to"), enum(*CURRENCIES), v.one_of(*CURRENCIES), ("Currency to convert to",)
            ),
        ),
        (
            "Convert {0} {1} to {2}",
            "How much is {0} {1} in {2}",
            "Change {0} {1} into {2}",
            "What is {0} {1} in {2}",
            "Please exchange {0} {1} to {2}",
        ),
        (),
        (('{{"result": {n}.5}}', "{0} {1} is {n}.5 {2}."), ('{{"converted": {n}}}', "{0} {1} is {n} {2}.")),
    ),
    Function(
        ("set_alarm", "create_alarm", "wake_me"),
        ("Set an alarm", "Make an alarm clock ring at a time"),
        (
            Parameter(("time", "at", "alarm_time"), STRING, v.clock, ("Time as HH:MM", "When it rings, HH:MM")),
            Parameter(
                ("label", "title", "note"),
                STRING,
                v.phrase,
                ("Label of the alarm", "Text to show"),
                (' with the label "{}"', ', call it "{}"', ' named "{}"'),
            ),
            Parameter(
                ("repeat", "daily", "every_day"),
                BOOLEAN,
                v.yes_no("every day", "only once"),
                ("Ring every day",),
                (", {}",),
            ),
        ),
        ("Set an alarm for {0}", "Wake me at {0}", "Create an alarm at {0}", "I need an alarm for {0}", "Alarm at {0}"),
        ("Set alarms for {0}", "I need alarms at {0}", "Create alarms at {0}"),
        (('{{"status": "ok"}}', "The alarm is set for {0}."),),
    ),
    Function(
        ("set_timer", "start_timer", "countdown"),
        ("Start a timer", "Start a countdown"),
        (
            Parameter(
                ("minutes", "duration", "length"),
                INTEGER,
                v.integer(1, 180),
                ("Length in minutes", "Number of minutes"),
            ),
        ),
        (
            "Set a timer for {0} minutes",
            "Start a timer of {0} minutes",
            "Count down {0} minutes",
            "Timer, {0} minutes",
            "Remind me in {0} minutes",
        ),
        (),
        (('{{"status": "started"}}', "The timer runs for {0} minutes."),),
    ),
    Function(
        ("send_message", "send_text", "message_contact"),
        ("Send a text message to a person", "Send a message"),
        (
            Parameter(("recipient", "to", "contact"), STRING, v.name, ("Who gets the message", "Name of the person")),
            Parameter(("text", "message", "body"), STRING, v.sentence, ("Text of the message", "What to send")),
        ),
        (
            'Send a message to {0}: "{1}"',
            'Write to {0}: "{1}"',
            'Text {0} "{1}"',
            'Tell {0}: "{1}"',
            'Please send {0} this message: "{1}"',
            'Send "{1}" to {0}',
        ),
        (),
        (('{{"sent": true}}', "The message to {0} is sent."),),
    ),
    Function(
        ("search_flights", "find_flights", "flight_search"),
        ("Search flights between two cities", "Find flights on a date"),
        (
            Parameter(
                ("origin", "from_city", "departure"), STRING, v.city, ("City of departure", "Where the flight starts")
            ),
            Parameter(
                ("destination", "to_city", "arrival"), STRING, v.city, ("City of arrival", "Where the flight ends")
            ),
            Parameter(
                ("date", "day", "travel_date"), STRING, v.date, ("Date as YYYY-MM-DD", "Day of the flight, YYYY-MM-DD")
            ),
            Parameter(
                ("passengers", "seats", "travellers"),
                INTEGER,
                v.integer(2, 9),
                ("Number of passengers", "How many seats"),
                (" for {} people", ", {} passengers", " with {} seats"),
            ),
        ),
        (
            "Find flights from {0} to {1} on {2}",
            "I want to fly from {0} to {1} on {2}",
            "Search a flight {0} to {1}, {2}",
            "Show flights from {0} to {1} on {2}",
            "On {2} I need a flight from {0} to {1}",
        ),
        (),
        (('{{"flights": [{{"price": {n}}}]}}', "There is a flight from {0} to {1} for {n}."),),
    ),
    Function(
        ("create_event", "add_event", "schedule_meeting"),
        ("Create an event in the calendar", "Add a meeting to the calendar"),
        (
            Parameter(("title", "name", "subject"), STRING, v.phrase, ("Title of the event", "What it is about")),
            Parameter(("date", "day", "on"), STRING, v.date, ("Date as YYYY-MM-DD",)),
            Parameter(("start", "time", "start_time"), STRING, v.clock, ("Start as HH:MM",)),
            Parameter(
                ("attendees", "guests", "people"),
                STRINGS,
                v.names,
                ("Names of the people invited", "Who takes part"),
                (" with {}", ", invite {}", " together with {}"),
            ),
        ),
        (
            'Create an event "{0}" on {1} at {2}',
            'Put "{0}" in my calendar for {1} at {2}',
            'Schedule "{0}" on {1}, {2}',
            'Add "{0}" at {2} on {1}',
            'Plan a meeting "{0}" for {1} at {2}',
        ),
        (),
        (('{{"id": {n}, "status": "created"}}', 'The event "{0}" is in your calendar on {1} at {2}.'),),
    ),
    Function(
        ("add_numbers", "sum_two", "plus"),
        ("Add two numbers", "Sum of two numbers"),
        (
            Parameter(("a", "x", "first"), NUMBER, v.number(0, 9999), ("First number",)),
            Parameter(("b", "y", "second"), NUMBER, v.number(0, 9999), ("Second number",)),
        ),
        (
            "Add {0} and {1}",
            "What is {0} plus {1}",
            "Use the tool to add {0} and {1}",
            "Sum up {0} and {1}",
            "Compute {0} + {1}",
        ),
        (),
        (('{{"sum": {n}}}', "The sum of {0} and {1} is {n}."),),
    ),
    Function(
        ("translate_text", "translate", "translator"),
        ("Translate a text into a language", "Translate text"),
        (
            Parameter(("text", "content", "phrase"), STRING, v.sentence, ("Text to translate",)),
            Parameter(
                ("language", "target_language", "into"),
                enum(*LANGUAGES),
                v.one_of(*LANGUAGES),
                ("Language of the result",),
            ),
        ),
        (
            'Translate "{0}" into {1}',
            'How do you say "{0}" in {1}',
            'What is "{0}" in {1}',
            'I need this in {1}: "{0}"',
        ),
        (),
        (),
    ),
    Function(
        ("add_to_list", "list_add", "put_on_list"),
        ("Add items to a list", "Put things on a list"),
        (
            Parameter(
                ("list", "list_name", "target"),
                enum("shopping", "packing", "party"),
                v.one_of("shopping", "packing", "party"),
                ("Which list", "Name of the list"),
            ),
            Parameter(("items", "things", "entries"), STRINGS, v.items, ("Items to add", "What to add")),
        ),
        ("Put {1} on my {0} list", "Add {1} to the {0} list", "I need {1} on the {0} list", "{0} list: add {1}"),
        (),
        (('{{"count": {n}}}', "Your {0} list has {n} entries now."),),
    ),
    Function(
        ("book_table", "reserve_table", "restaurant_booking"),
        ("Book a table at a restaurant", "Reserve a table"),
        (
            Parameter(("restaurant", "place", "venue"), STRING, v.phrase, ("Name of the restaurant",)),
            Parameter(
                ("guests", "people", "party_size"), INTEGER, v.integer(2, 12), ("Number of guests", "How many people")
            ),
            Parameter(
                ("contact", "booked_by", "customer"), record(name=STRING, phone=STRING), v.contact, ("Who books",)
            ),
        ),
        (
            'Book a table at "{0}" for {1} people, contact {2}',
            'Reserve a table for {1} at "{0}" for {2}',
            'I want to eat at "{0}" with {1} people, contact is {2}',
        ),
        (),
        (('{{"confirmed": true, "table": {n}}}', 'Your table at "{0}" is number {n}.'),),
    ),
    Function(
        ("get_stock_price", "stock_quote", "share_price"),
        ("Get the price of a share", "Look up a stock"),
        (Parameter(("symbol", "ticker", "code"), STRING, v.symbol, ("Symbol of the share", "Ticker")),),
        (
            "What is the share price of {0}",
            "Price of {0} stock",
            "Look up the stock {0}",
            "How is {0} trading",
            "Quote for {0}, please",
        ),
        ("What are the share prices of {0}", "Look up the stocks {0}", "Quotes for {0}, please"),
        (('{{"price": {n}.25}}', "The price of {0} is {n}.25."), ('{{"price": {n}}}', "{0} is at {n}.")),
    ),
    Function(
        ("set_light", "switch_light", "control_lamp"),
        ("Switch the light of a room", "Control the lamp of a room"),
        (
            Parameter(
                ("room", "where", "location"), enum(*ROOMS), v.one_of(*ROOMS), ("Which room", "Name of the room")
            ),
            Parameter(
                ("on", "state", "power"), BOOLEAN, v.yes_no("on", "off"), ("True for on, false for off", "On or off")
            ),
            Parameter(
                ("brightness", "level", "percent"),
                INTEGER,
                v.integer(1, 100),
                ("Brightness in percent",),
                (", brightness {}", " at {} percent", " with brightness {}"),
            ),
        ),
        (
            "Turn {1} the light in the {0}",
            "Switch the {0} light {1}",
            "Light in the {0} {1}",
            "Please turn the {0} lamp {1}",
        ),
        (),
        (('{{"status": "done"}}', "The light in the {0} is {1}."),),
    ),
    Function(
        ("calculate_tip", "tip", "tip_amount"),
        ("Calculate the tip of a bill", "How much to tip"),
        (
            Parameter(("bill", "total", "amount"), NUMBER, v.number(5, 400), ("Amount of the bill",)),
            Parameter(("percent", "rate", "tip_percent"), INTEGER, v.integer(3, 30), ("Percent of the tip",)),
        ),
        (
            "What is a {1} percent tip on {0} dollars",
            "Calculate {1} percent tip for a bill of {0}",
            "Tip of {1} percent on {0}",
            "The bill is {0}, I tip {1} percent. How much is that",
        ),
        (),
        (('{{"tip": {n}}}', "A tip of {1} percent on {0} is {n}."),),
    ),
    Function(
        ("play_music", "play_song", "start_music"),
        ("Play a song", "Play music"),
        (
            Parameter(("song", "title", "track"), STRING, v.phrase, ("Title of the song",)),
            Parameter(("artist", "singer", "by"), STRING, v.full_name, ("Who sings it",), (" by {}", " sung by {}")),
            Parameter(
                ("shuffle", "random", "mix"),
                BOOLEAN,
                v.yes_no("with shuffle", "without shuffle"),
                ("Random order",),
                (", {}", " {}"),
            ),
        ),
        ('Play "{0}"', 'I want to hear "{0}"', 'Start the song "{0}"', 'Put on "{0}"'),
        (),
        (('{{"playing": true}}', 'Now playing "{0}".'),),
    ),
    Function(
        ("send_parcel", "ship_package", "order_delivery"),
        ("Send a parcel to an address", "Ship a package"),
        (
            Parameter(("weight", "kilograms", "kg"), NUMBER, v.number(1, 30), ("Weight in kilograms",)),
            Parameter(
                ("address", "to", "destination"), record(street=STRING, city=STRING), v.address, ("Where it goes",)
            ),
            Parameter(
                ("express", "fast", "priority"),
                BOOLEAN,
                v.yes_no("with express", "without express"),
                ("Express delivery",),
                (", {}", " {}"),
            ),
        ),
        ("Send a parcel of {0} kg to {1}", "Ship {0} kg to {1}", "I have a package of {0} kg for {1}"),
        (),
        (('{{"number": {n}}}', "The parcel has the number {n}."),),
    ),
    Function(
        ("list_devices", "show_devices", "get_devices"),
        ("List the devices at home", "Show all devices"),
        (),
        ("Which devices do I have", "List my devices", "Show me all devices", "What devices are there"),
        (),
        (('{{"devices": ["{w} lamp", "{w} radio"]}}', "You have a {w} lamp and a {w} radio."),),
    ),
)
