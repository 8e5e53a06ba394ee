"""The templates of word_problems.py.

`draw` lists numbers in order, `name=expression` with r(low, high) inclusive and pick(...), without spaces inside an expression.
`facts` are sentences with `|` between wordings; `shuffle` says that their order does not matter,
which needs facts that cannot be taken for each other: the order of the steps must follow from the question. In `steps`, {f0} is fact 0 as it
stands in the question and <a + b = c> is written out and defines c; the last such result is the answer. {N}, {M}, {P} are people;
{he}, {He}, {his}, {His} refer to N; {a_more_thing} is '7 more apples' with the right plural; other fields are lists of word_lists.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Spec:
    id: str
    draw: str
    facts: tuple[str, ...]
    ask: str
    steps: tuple[str, ...]
    shuffle: bool = False
    aside_without: str = ""  # asides that match this pattern would be ambiguous here


AGE = "year"
HAS = "{N} has {a_thing}.|{N} owns {a_thing}.|{N} keeps {a_thing} at home."
HAS_T = "{N} has {t_thing}.|{N} owns {t_thing}.|There are {t_thing} on the table of {N}."
M_HAS = "{M} has {b_thing}.|{M} owns {b_thing}."

SPECS: tuple[Spec, ...] = (
    # Having, getting and giving
    Spec("gain", "a=r(3,90) b=r(2,80)", (HAS, "{N} finds {b_more_thing}.|{N} buys {b_more_thing}.|{M} gives {N} {b_more_thing}."),
         "How many {thing} does {N} have now?|How many {thing} does {N} have in all?|What is the number of {thing} that {N} has now?",
         ("{f0} {f1} <a + b = c>.", "So {N} has {c_thing}.")),
    Spec("lose", "a=r(20,120) b=r(3,a-1)", (HAS, "{N} gives {b_thing} to {M}.|{N} loses {b_thing}.|{N} sells {b_thing}."),
         "How many {thing} does {N} have left?|How many {thing} are left?|What is the number of {thing} that {N} still has?",
         ("{f0} {f1} <a - b = c>.", "So {N} has {c_thing} left.")),
    Spec("gain_lose", "a=r(5,90) b=r(4,60) c=r(2,a+b-1)", (
        HAS, "{N} buys {b_more_thing}.|Then {N} finds {b_more_thing}.",
        "After that {N} gives {c_thing} to {M}.|Later {N} loses {c_thing}.|Later {he} sells {c_thing}."),
         "How many {thing} does {N} have left?|How many {thing} does {N} have in the end?",
         ("{f0} {f1} <a + b = s>.", "{f2} <s - c = d>.", "So {N} has {d_thing} left.")),
    Spec("lose_lose", "a=r(30,150) b=r(3,a-10) c=r(2,a-b-1)", (
        HAS, "{N} gives {b_thing} to {M}.|{N} sends {b_thing} to {M}.", "{N} gives {c_thing} to {P}.|{N} sells {c_thing} to {P}."),
         "How many {thing} does {N} have left?|How many {thing} does {N} keep?",
         ("{f0} {f1} <a - b = s>.", "{f2} <s - c = d>.", "So {N} has {d_thing} left.")),
    Spec("two_totals", "a=r(3,200) b=r(3,200)", (HAS, M_HAS),
         "How many {thing} do {N} and {M} have together?|How many {thing} do they have in all?|What is the total number of {thing}?",
         ("{f0} {f1} <a + b = c>.", "So {N} and {M} have {c_thing} together.")),
    Spec("three_totals", "a=r(3,90) b=r(3,90) c=r(3,90)", (HAS, M_HAS, "{P} has {c_thing}.|{P} owns {c_thing}."),
         "How many {thing} do the three of them have together?|How many {thing} do {N}, {M} and {P} have in all?",
         ("{f0} {f1} {f2} <a + b + c = d>.", "So they have {d_thing} together.")),
    Spec("colors", "a=r(3,80) b=r(3,80) c=r(2,a+b-1)", (
        "{N} has {a_color_bright}.|{N} owns {a_color_bright}.", "{N} has {b_color2_bright}.|{N} also owns {b_color2_bright}.",
        "{N} gives away {c_bright}.|{N} loses {c_bright}."),
         "How many {bright} does {N} have left?|How many {bright} are left in all?",
         ("{f0} {f1} <a + b = s>.", "{f2} <s - c = d>.", "So {N} has {d_bright} left.")),
    Spec("missing_start", "c=r(10,90) b=r(3,60) a=c+b", (
        "{N} had some {thing}.|{N} brought some {thing} to school.", "{N} gave {b_thing} to {M}.|{N} lost {b_thing} on the way.",
        "Now {N} has {c_thing} left.|Now {N} has only {c_thing}."),
         "How many {thing} did {N} have at first?|How many {thing} did {N} have at the start?",
         ("{f1} {f2} <c + b = a>.", "So {N} had {a_thing} at first.")),
    Spec("missing_gain", "a=r(5,90) b=r(3,60) c=a+b", (
        "{N} had {a_thing} in the morning.|On Monday {N} had {a_thing}.", "{M} gave {N} some more {thing}.|Then {N} got some more {thing}.",
        "Now {N} has {c_thing}.|Now {N} has {c_thing} in all."),
         "How many {thing} did {N} get?|How many more {thing} did {N} get?",
         ("{f2} {f0} <c - a = b>.", "So {N} got {b_more_thing}.")),
    # Comparing
    Spec("difference", "b=r(3,90) d=r(2,60) a=b+d", (HAS, M_HAS),
         "How many more {thing} does {N} have than {M}?|How many fewer {thing} does {M} have than {N}?",
         ("{f0} {f1} <a - b = d>.", "So the difference is {d_thing}."), True),
    Spec("more_than", "a=r(3,90) b=r(2,60)", (HAS, "{M} has {b_more_thing} than {N}.|{M} owns {b_more_thing} than {N}."),
         "How many {thing} does {M} have?|What is the number of {thing} that {M} has?",
         ("{f0} {f1} <a + b = c>.", "So {M} has {c_thing}."), True),
    Spec("fewer_than", "a=r(15,99) b=r(2,a-2)", (HAS, "{M} has {b_fewer_thing} than {N}.|{M} owns {b_fewer_thing} than {N}."),
         "How many {thing} does {M} have?|What is the number of {thing} that {M} has?",
         ("{f0} {f1} <a - b = c>.", "So {M} has {c_thing}."), True),
    Spec("more_total", "a=r(3,90) b=r(2,60)", (HAS, "{M} has {b_more_thing} than {N}.|{M} owns {b_more_thing} than {N}."),
         "How many {thing} do {N} and {M} have together?|How many {thing} do they have in all?",
         ("{f0} {f1} <a + b = c>.", "So {M} has {c_thing}.", "<a + c = d>.", "So they have {d_thing} together."), True),
    Spec("fewer_total", "a=r(15,99) b=r(2,a-2)", (HAS, "{M} has {b_fewer_thing} than {N}.|{M} owns {b_fewer_thing} than {N}."),
         "How many {thing} do {N} and {M} have together?|How many {thing} do they have in all?",
         ("{f0} {f1} <a - b = c>.", "So {M} has {c_thing}.", "<a + c = d>.", "So they have {d_thing} together."), True),
    Spec("times", "a=r(3,40) k=r(3,9)", (HAS, "{M} has {k} times as many {thing} as {N}.|{M} owns {k} times as many {thing} as {N}."),
         "How many {thing} does {M} have?|What is the number of {thing} that {M} has?",
         ("{f0} {f1} <a * k = c>.", "So {M} has {c_thing}."), True),
    Spec("times_total", "a=r(3,40) k=r(3,9)", (
        HAS, "{M} has {k} times as many {thing} as {N}.|{M} owns {k} times as many {thing} as {N}."),
         "How many {thing} do {N} and {M} have together?|How many {thing} do they have in all?",
         ("{f0} {f1} <a * k = c>.", "So {M} has {c_thing}.", "<a + c = d>.", "So they have {d_thing} together."), True),
    Spec("twice_more", "a=r(3,60) b=r(2,40)", (
        HAS, "{M} has twice as many {thing} as {N}.|{M} owns twice as many {thing} as {N}.",
        "{P} has {b_more_thing} than {M}.|{P} owns {b_more_thing} than {M}."),
         "How many {thing} does {P} have?|What is the number of {thing} that {P} has?",
         ("{f0} {f1} <a * 2 = c>.", "So {M} has {c_thing}.", "{f2} <c + b = d>.", "So {P} has {d_thing}."), True),
    Spec("three_people", "a=r(3,50) b=r(2,40)", (
        HAS, "{M} has {b_more_thing} than {N}.|{M} owns {b_more_thing} than {N}.",
        "{P} has twice as many {thing} as {M}.|{P} owns twice as many {thing} as {M}."),
         "How many {thing} do the three of them have together?|How many {thing} do they have in all?",
         ("{f0} {f1} <a + b = c>.", "So {M} has {c_thing}.", "{f2} <c * 2 = d>.", "So {P} has {d_thing}.", "<a + c + d = g>.",
          "So they have {g_thing} together.")),
    Spec("half_as_many", "c=r(3,60) a=2*c", (HAS, "{M} has half as many {thing} as {N}.|{M} owns half as many {thing} as {N}."),
         "How many {thing} does {M} have?|What is the number of {thing} that {M} has?",
         ("{f0} {f1} <a / 2 = c>.", "So {M} has {c_thing}."), True),
    Spec("half_total", "c=r(3,60) a=2*c", (HAS, "{M} has half as many {thing} as {N}.|{M} owns half as many {thing} as {N}."),
         "How many {thing} do {N} and {M} have together?|How many {thing} do they have in all?",
         ("{f0} {f1} <a / 2 = c>.", "So {M} has {c_thing}.", "<a + c = d>.", "So they have {d_thing} together."), True),
    Spec("third_less", "c=r(8,40) a=3*c b=r(2,c-1)", (
        HAS, "{M} has a third as many {thing} as {N}.|{M} owns a third as many {thing} as {N}.",
        "{P} has {b_fewer_thing} than {M}.|{P} owns {b_fewer_thing} than {M}."),
         "How many {thing} does {P} have?|What is the number of {thing} that {P} has?",
         ("{f0} {f1} <a / 3 = c>.", "So {M} has {c_thing}.", "{f2} <c - b = d>.", "So {P} has {d_thing}."), True),
    # Groups and sharing
    Spec("groups", "a=r(3,40) b=r(2,9)", (
        "There are {a_box} in the room.|{N} has {a_box}.|{N} fills {a_box}.", "Each {box.one} holds {b_thing}.|There are {b_thing} in each {box.one}."),
         "How many {thing} are there in all?|What is the total number of {thing}?|How many {thing} are in the {box}?",
         ("{f0} {f1} <a * b = c>.", "So there are {c_thing} in all."), True),
    Spec("two_groups", "a=r(2,9) b=r(3,20) c=r(2,9) d=r(3,20)", (
        "{N} has {a_big_box} with {b_thing} in each.|{N} fills {a_big_box} with {b_thing} each.",
        "{N} has {c_small_box} with {d_thing} in each.|{N} fills {c_small_box} with {d_thing} each."),
         "How many {thing} does {N} have in all?|How many {thing} are there in all the {box} together?",
         ("{f0} <a * b = s>.", "{f1} <c * d = t>.", "<s + t = u>.", "So there are {u_thing} in all."), True),
    Spec("groups_loose", "a=r(2,12) b=r(3,12) c=r(2,50)", (
        "{N} has {a_box} of {thing}.|{N} buys {a_box} of {thing}.", "Each {box.one} holds {b_thing}.|There are {b_thing} in each {box.one}.",
        "{N} also has {c_loose_thing}.|{N} finds {c_loose_thing}."),
         "How many {thing} does {N} have in all?|What is the total number of {thing}?",
         ("{f0} {f1} <a * b = s>.", "{f2} <s + c = d>.", "So {N} has {d_thing} in all.")),
    Spec("groups_eaten", "a=r(3,12) b=r(4,12) c=r(2,a*b-1)", (
        "{N} has {a_box} of {thing}.|{N} buys {a_box} of {thing}.", "Each {box.one} holds {b_thing}.|There are {b_thing} in each {box.one}.",
        "{N} gives away {c_thing}.|{N} gives {c_thing} to {M}."),
         "How many {thing} does {N} have left?|How many {thing} are left?",
         ("{f0} {f1} <a * b = s>.", "{f2} <s - c = d>.", "So {N} has {d_thing} left.")),
    Spec("share", "k=r(2,9) q=r(2,40) t=k*q", (
        HAS_T, "{N} shares the {thing} equally among {k_friend}.|{N} gives all the {thing} to {k_friend} in equal parts."),
         "How many {thing} does each {friend.one} get?|What is the number of {thing} for each {friend.one}?",
         ("{f0} {f1} <t / k = q>.", "So each {friend.one} gets {q_thing}.")),
    Spec("pack", "k=r(2,12) q=r(2,30) t=k*q", (
        HAS_T, "{N} puts {k_thing} into each {box.one}.|Each {box.one} holds {k_thing}."),
         "How many {box} does {N} need for all the {thing}?|How many {box} does {N} fill with all the {thing}?",
         ("{f0} {f1} <t / k = q>.", "So {N} needs {q_box}.")),
    Spec("left_over", "k=r(3,9) q=r(2,12) d=r(1,k-1) t=k*q+d", (
        HAS_T, "{N} shares as many of the {thing} as possible equally among {k_friend}.|{N} gives each of {k_friend} the same number of {thing} and as many as possible."),
         "How many {thing} are left over?|How many {thing} remain?",
         ("{f0} {f1}", "Each {friend.one} gets {q_thing}. <q * k = s>.", "<t - s = d>.", "So {N} has {d_thing} left over.")),
    Spec("share_after_gain", "k=r(2,9) q=r(3,20) a=r(2,k*q-2) b=k*q-a", (
        HAS, "{N} buys {b_more_thing}.|{N} gets {b_more_thing} from {M}.", "{N} shares all the {thing} equally among {k_friend}.|Then {N} gives all the {thing} to {k_friend} in equal parts."),
         "How many {thing} does each {friend.one} get?|What is the number of {thing} for each {friend.one}?",
         ("{f0} {f1} <a + b = s>.", "{f2} <s / k = q>.", "So each {friend.one} gets {q_thing}.")),
    Spec("share_after_keep", "k=r(2,9) q=r(2,20) b=r(2,30) t=k*q+b", (
        HAS_T, "{N} keeps {b_thing}.|{N} sets aside {b_thing}.", "{N} shares the rest equally among {k_friend}.|The rest is shared equally among {k_friend}."),
         "How many {thing} does each {friend.one} get?|What is the number of {thing} for each {friend.one}?",
         ("{f0} {f1} <t - b = s>.", "{f2} <s / k = q>.", "So each {friend.one} gets {q_thing}.")),
    Spec("regroup", "a=r(2,9) k=r(2,9) q=r(2,9) b=k*q", (
        "{N} has {a_box} with {b_thing} in each.|{N} buys {a_box} of {b_thing} each.",
        "{N} shares all the {thing} equally among {k_friend}.|{N} gives all the {thing} to {k_friend} in equal parts."),
         "How many {thing} does each {friend.one} get?|What is the number of {thing} for each {friend.one}?",
         ("{f0} <a * b = s>.", "{f1} <s / k = d>.", "So each {friend.one} gets {d_thing}.")),
    Spec("chairs", "a=r(3,12) b=r(4,20) c=r(2,a*b-5)", (
        "A hall has {a_row} of chairs.|There are {a_row} of chairs in a hall.", "Each row has {b_chair}.|There are {b_chair} in each row.",
        "On Friday {c_chair} are empty.|At the show {c_chair} stay empty."),
         "How many chairs are taken?|On how many chairs do people sit?",
         ("{f0} {f1} <a * b = s>.", "{f2} <s - c = d>.", "So the number of taken chairs is {d}.")),
    Spec("library", "a=r(3,12) b=r(8,30) c=r(4,60) d=r(2,c-1)", (
        "A library has {a_shelf} with {b_book} on each.|There are {a_shelf} with {b_book} each in a library.", "On Monday people borrow {c_book}.|In the morning {c_book} are borrowed.",
        "On Tuesday people bring back {d_book}.|In the evening {d_book} are brought back."),
         "How many books are in the library now?|How many books does the library have now?",
         ("{f0} <a * b = s>.", "{f1} <s - c = u>.", "{f2} <u + d = v>.", "So there are {v_book} in the library now.")),
    # Shopping and money
    Spec("buy_same", "a=r(2,12) p=r(2,40)", (
        "A single {item.one} costs ${p}.|The price of one {item.one} is ${p}.", "{N} buys {a_item}.|{N} wants {a_item}."),
         "How much does {N} pay in dollars?|How many dollars are the {item} in all?",
         ("{f0} {f1} <a * p = c>.", "So {N} pays ${c}."), True),
    Spec("buy_change", "a=r(2,9) p=r(2,12) t=pick(20,50,100,120,150)", (
        "A single {item.one} costs ${p}.|The price of one {item.one} is ${p}.", "{N} buys {a_item}.|{N} takes {a_item}.", "{N} pays with ${t}.|{N} gives the seller ${t}."),
         "How much change does {N} get in dollars?|How many dollars does {N} get back?",
         ("{f0} {f1} <a * p = c>.", "{f2} <t - c = d>.", "So {N} gets ${d} back.")),
    Spec("buy_two", "p=r(2,90) s=r(2,90)", (
        "{N} buys {item.a} for ${p}.|{N} pays ${p} for {item.a}.", "{N} buys {item2.a} for ${s}.|{N} pays ${s} for {item2.a}."),
         "How much does {N} pay in all, in dollars?|How many dollars does {N} spend?",
         ("{f0} {f1} <p + s = c>.", "So {N} pays ${c} in all.")),
    Spec("budget", "p=r(5,60) s=r(5,60) t=r(p+s+1,250)", (
        "{N} has ${t}.|{N} goes to a shop with ${t}.", "{N} buys {item.a} for ${p}.|{N} pays ${p} for {item.a}.", "{N} buys {item2.a} for ${s}.|{N} pays ${s} for {item2.a}."),
         "How much money does {N} have left, in dollars?|How many dollars are left?",
         ("{f1} {f2} <p + s = c>.", "{f0} <t - c = d>.", "So {N} has ${d} left.")),
    Spec("buy_mixed", "a=r(2,9) p=r(2,12) b=r(2,9) s=r(2,12)", (
        "{N} buys {a_item} for ${p} each.|{N} pays ${p} each for {a_item}.", "{N} buys {b_item2} for ${s} each.|{N} pays ${s} each for {b_item2}."),
         "How much does {N} pay in all, in dollars?|How many dollars does {N} spend?",
         ("{f0} <a * p = c>.", "{f1} <b * s = d>.", "<c + d = g>.", "So {N} pays ${g} in all.")),
    Spec("mixed_change", "a=r(2,9) p=r(2,9) b=r(2,9) s=r(2,9) t=pick(100,150,200)", (
        "{N} buys {a_item} for ${p} each.|{N} pays ${p} each for {a_item}.", "{N} buys {b_item2} for ${s} each.|{N} pays ${s} each for {b_item2}.",
        "Before that {N} had ${t}.|At first {N} had ${t}."),
         "How much money does {N} have left, in dollars?|How many dollars are left?",
         ("{f0} <a * p = c>.", "{f1} <b * s = d>.", "<c + d = g>.", "{f2} <t - g = h>.", "So {N} has ${h} left.")),
    Spec("unit_price", "a=r(2,9) p=r(2,30) t=a*p", (
        "{N} buys {a_item}.|{N} takes {a_item}.", "All the {item} together cost ${t}.|{N} pays ${t} for the {item} in all."),
         "How much does one {item.one} cost in dollars?|What is the price of one {item.one} in dollars, if all cost the same?",
         ("{f0} {f1} <t / a = p>.", "So one {item.one} costs ${p}.")),
    Spec("price_scale", "a=r(2,9) p=r(2,12) b=r(2,12) t=a*p", (
        "{a_item} cost ${t} in all.|The price of {a_item} is ${t}.", "{N} wants to buy {b_item}.|{N} needs {b_item}."),
         "How much does {N} pay in dollars?|How many dollars does {N} need?",
         ("{f0} <t / a = p>.", "So one {item.one} costs ${p}.", "{f1} <b * p = c>.", "So {N} pays ${c}.")),
    Spec("how_many_items", "p=r(2,9) q=r(2,15) s=r(2,40) t=p*q+s", (
        "{N} has ${t}.|{N} goes to a shop with ${t}.", "{N} buys {item.a} for ${s}.|First {N} pays ${s} for {item.a}.",
        "With the rest {N} buys {item2} for ${p} each.|{N} spends all the rest on {item2} for ${p} each."),
         "How many {item2} does {N} buy?|What is the number of {item2} that {N} gets?",
         ("{f0} {f1} <t - s = c>.", "{f2} <c / p = q>.", "So {N} buys {q_item2}.")),
    Spec("dearer", "p=r(5,90) d=r(2,60)", (
        "{N} buys {item.a} for ${p}.|{N} pays ${p} for {item.a}.", "{N} buys {item2.a} that costs ${d} more than the {item.one}.|{N} also gets {item2.a} for ${d} more than the {item.one}."),
         "How much does {N} pay in all, in dollars?|How many dollars does {N} spend?",
         ("{f0} {f1} <p + d = s>.", "So the {item2.one} costs ${s}.", "<p + s = c>.", "So {N} pays ${c} in all.")),
    Spec("coins", "a=r(2,12) b=r(2,12)", (
        "{N} has {a_coin} of 10 cents.|There are {a_coin} of 10 cents in a jar.", "{N} has {b_coin} of 5 cents.|{N} also finds {b_coin} of 5 cents."),
         "How many cents does {N} have in all?|How many cents are the coins worth together?",
         ("{f0} <a * 10 = c>.", "{f1} <b * 5 = d>.", "<c + d = g>.", "So the coins are worth {g_cent} together.")),
    Spec("tickets", "a=r(2,9) p=r(6,20) b=r(2,9) s=r(2,9)", (
        "A ticket for an adult costs ${p}.|Adults pay ${p} for a ticket.", "A ticket for a child costs ${s}.|Children pay ${s} for a ticket.",
        "A group of {a_adult} and {b_child} goes to the show.|{a_adult} and {b_child} buy tickets."),
         "How much does the group pay in dollars?|How many dollars do all the tickets cost?",
         ("{f2}", "{f0} <a * p = c>.", "{f1} <b * s = d>.", "<c + d = g>.", "So all the tickets cost ${g}.")),
    Spec("coupon", "a=r(2,9) p=r(4,20) b=r(2,a*p-1)", (
        "{N} buys {a_item} for ${p} each.|{N} pays ${p} each for {a_item}.", "A coupon takes ${b} off the total.|With a coupon the total is ${b} less."),
         "How much does {N} pay in the end, in dollars?|How many dollars does {N} pay with the coupon?",
         ("{f0} <a * p = c>.", "{f1} <c - b = d>.", "So {N} pays ${d}.")),
    Spec("bill", "k=r(2,9) q=r(6,40) b=r(2,k*q//4) t=k*q-b", (
        "A dinner costs ${t}.|The food in a restaurant costs ${t}.", "The tip is ${b}.|The guests add ${b} as a tip.",
        "{k_friend} share the cost equally.|The whole cost is shared equally by {k_friend}."),
         "How much does each {friend.one} pay in dollars?|How many dollars does each {friend.one} pay?",
         ("{f0} {f1} <t + b = s>.", "{f2} <s / k = q>.", "So each {friend.one} pays ${q}.")),
    # Earning and saving
    Spec("save_weeks", "a=r(5,90) b=r(2,20) k=r(2,12)", (
        "{N} has ${a}.|{N} has saved ${a} so far.", "{N} saves ${b} more every week.|Every week {N} puts ${b} more into a money box."),
         "How many dollars does {N} have after {k_week}?|How much money does {N} have in {k_week}, in dollars?",
         ("{f1} <b * k = c>.", "{f0} <a + c = d>.", "So {N} has ${d} after {k_week}.")),
    Spec("save_goal", "b=r(2,20) q=r(2,12) a=r(5,90) t=a+b*q", (
        "{N} wants to buy {goal.a} for ${t}.|{N} would like {goal.a} that costs ${t}.", "{N} already has ${a}.|So far {N} has ${a}.",
        "{N} saves ${b} every week.|Every week {N} saves ${b}."),
         "How many weeks does {N} need to save?|In how many weeks can {N} buy the {goal.one}?",
         ("{f0} {f1} <t - a = c>.", "{f2} <c / b = q>.", "So {N} needs {q_week}.")),
    Spec("wage", "p=r(6,20) h=r(2,8) d=r(2,6)", (
        "{N} earns ${p} an hour.|{N} works at a {job} for ${p} an hour.", "{N} works {h_hour} a day.|Every day {he} works {h_hour}.",
        "{N} works {d_day} a week.|{He} works on {d_day} of the week."),
         "How much does {N} earn in a week, in dollars?|How many dollars does {N} earn each week?",
         ("{f0} {f1} <p * h = c>.", "So {N} earns ${c} a day.", "{f2} <c * d = g>.", "So {N} earns ${g} a week.")),
    Spec("wage_spend", "p=r(6,20) h=r(3,9) b=r(3,p*h-1)", (
        "{N} earns ${p} an hour.|{N} works at a {job} for ${p} an hour.", "Today {N} works {h_hour}.|On Saturday {N} works {h_hour}.",
        "{N} spends ${b} on food.|Then {N} buys {item.a} for ${b}."),
         "How many dollars does {N} have left?|How much of the earned money is left, in dollars?",
         ("{f0} {f1} <p * h = c>.", "{f2} <c - b = d>.", "So {N} has ${d} left.")),
    Spec("wage_compare", "p=r(8,20) s=r(5,p-1) h=r(2,9)", (
        "{N} earns ${p} an hour.|{N} gets ${p} for every hour of work.", "{M} earns ${s} an hour.|{M} gets ${s} for every hour of work.", "Both work {h_hour}.|They both work {h_hour} today."),
         "How many more dollars does {N} earn than {M}?|How much more money does {N} get than {M}, in dollars?",
         ("{f2}", "{f0} <p * h = c>.", "{f1} <s * h = d>.", "<c - d = g>.", "So {N} earns ${g} more.")),
    Spec("sell", "a=r(4,20) p=r(2,9) c=r(2,a*p-1)", (
        "{N} makes {a_craft}.|{N} prepares {a_craft} for a fair.", "{N} sells each {craft.one} for ${p}.|At the fair each {craft.one} is sold for ${p}.",
        "The material costs ${c}.|{N} pays ${c} for the material."),
         "How many dollars does {N} gain after the cost of the material?|How much money does {N} earn after paying for the material, in dollars?",
         ("{f0} {f1} <a * p = s>.", "{f2} <s - c = d>.", "So {N} gains ${d}.")),
    Spec("chores", "a=r(2,9) p=r(2,9) b=r(2,9) s=r(2,9)", (
        "{N} gets ${p} for each car {he} washes.|For each washed car {N} gets ${p}.", "{N} gets ${s} for each lawn {he} mows.|For each mowed lawn {N} gets ${s}.",
        "{N} washes {a_car} and mows {b_lawn}.|This week {N} washes {a_car} and mows {b_lawn}."),
         "How many dollars does {N} get in all?|How much money does {N} earn, in dollars?",
         ("{f2}", "{f0} <a * p = c>.", "{f1} <b * s = d>.", "<c + d = g>.", "So {N} gets ${g} in all.")),
    Spec("club", "a=pick(5,10,15,20,25,30,40,50) p=r(5,40) k=r(2,12)", (
        "A {sport} club costs ${p} a month.|The fee of a {sport} club is ${p} a month.", "There is also a fee of ${a} to join.|New members also pay ${a} once."),
         "How many dollars does {N} pay for {k_month} as a new member?|{N} joins for {k_month}. How much does {he} pay in dollars?",
         ("{f0} <p * k = c>.", "{f1} <c + a = d>.", "So {N} pays ${d} for {k_month}.")),
    # Distance, rate and time
    Spec("distance", "v=pick(20,30,40,45,50,55,60,65,70,80,90) h=r(2,9)", (
        "A {vehicle.one} travels {v_far} every hour.|A {vehicle.one} goes at {v_far} an hour.", "It travels for {h_hour}.|It drives for {h_hour} without a stop."),
         "How many {far} does the {vehicle.one} travel?|How far does the {vehicle.one} go, in {far}?",
         ("{f0} {f1} <v * h = d>.", "So the {vehicle.one} travels {d_far}.")),
    Spec("two_legs", "v=pick(20,30,40,50,60,70,80,90) h=r(2,6) w=pick(20,30,40,50,60,70,80,90) g=r(2,6)", (
        "A {vehicle.one} travels for {h_hour} at {v_far} an hour.|For {h_hour} a {vehicle.one} goes {v_far} an hour.",
        "Then it travels for {g_hour} at {w_far} an hour.|Then for {g_hour} it goes {w_far} an hour."),
         "How many {far} does the {vehicle.one} travel in all?|How long is the whole trip in {far}?",
         ("{f0} <v * h = c>.", "{f1} <w * g = d>.", "<c + d = s>.", "So the whole trip is {s_far} long.")),
    Spec("travel_time", "v=pick(20,30,40,50,60,70,80,90) q=r(2,9) t=v*q", (
        "Two towns are {t_far} apart.|The road between two towns is {t_far} long.", "{N} drives at {v_far} an hour.|{N} drives {v_far} every hour."),
         "How many hours does the drive take?|How long does {N} need for the road, in hours?",
         ("{f0} {f1} <t / v = q>.", "So the drive takes {q_hour}."), True),
    Spec("trip_left", "v=pick(20,30,40,50,60,70,80) h=r(2,6) d=r(5,200) t=v*h+d", (
        "{N} plans a trip of {t_far}.|The trip of {N} is {t_far} long.", "{N} drives {v_far} an hour for {h_hour}.|For {h_hour} {N} drives {v_far} an hour."),
         "How many {far} are left?|How many {far} does {N} still have to drive?",
         ("{f1} <v * h = c>.", "{f0} <t - c = d>.", "So {N} still has to drive {d_far}.")),
    Spec("commute", "a=r(2,15) k=r(3,20)", (
        "The school of {N} is {a_far} from home.|{N} lives {a_far} from school.", "Every day {N} goes to school and back.|{N} goes there and back every day."),
         "How many {far} does {N} travel in {k_day}?|How far does {N} go in {k_day}, in {far}?",
         ("{f0} {f1} <a * 2 = c>.", "So {N} travels {c_far} a day.", "<c * k = d>.", "So {N} travels {d_far} in {k_day}.")),
    Spec("laps", "a=pick(100,200,300,400) k=r(3,9) b=r(10,90)", (
        "One lap around a field is {a_meter} long.|A lap around the park is {a_meter} long.", "{N} runs {k_lap}.|Today {N} runs {k_lap}.",
        "Then {N} walks {b_meter}.|After that {N} walks {b_meter} home."),
         "How many meters does {N} go in all?|What is the whole distance in meters?",
         ("{f0} {f1} <k * a = c>.", "{f2} <c + b = d>.", "So {N} goes {d_meter} in all.")),
    Spec("practice", "a=pick(10,15,20,25,30,35,40,45) k=r(2,6) b=pick(10,20,30,40,50,60)", (
        "{N} practices {sport} for {a_minute} a day on {k_day}.|On {k_day} {N} plays {sport} for {a_minute} each.", "On Sunday {N} plays for {b_more_minute}.|On Sunday {he} trains for {b_more_minute}."),
         "How many minutes is that in all?|What is the total time in minutes?",
         ("{f0} <a * k = c>.", "{f1} <c + b = d>.", "So {N} plays for {d_minute} in all.")),
    Spec("typing", "a=r(20,60) k=r(3,9) d=r(20,200) t=a*k+d", (
        "{N} types {a_word} a minute.|{N} can write {a_word} a minute.", "A letter has {t_word}.|{N} writes a letter of {t_word}."),
         "How many words are left after {k_minute}?|How many words does {N} still have to write after {k_minute}?",
         ("{f0} <a * k = c>.", "{f1} <t - c = d>.", "So {N} still has to write {d_word}."), True),
    Spec("machine", "a=r(4,40) k=r(3,9) b=r(2,30)", (
        "A machine makes {a_part} every minute.|A machine in a factory makes {a_part} a minute.", "It runs for {k_minute}.|It works for {k_minute}.",
        "Of these {part}, {b} are broken.|{b} of the {part} are broken."),
         "How many {part} are good?|How many {part} are not broken?",
         ("{f0} {f1} <a * k = c>.", "{f2} <c - b = d>.", "So the number of good {part} is {d}.")),
    Spec("together_rate", "a=r(2,12) b=r(2,12) h=r(2,9)", (
        "{N} makes {a_craft} an hour.|{N} can make {a_craft} in one hour.", "{M} makes {b_craft} an hour.|{M} can make {b_craft} in one hour.", "They work together for {h_hour}.|Both work for {h_hour}."),
         "How many {craft} do they make in all?|What is the total number of {craft}?",
         ("{f0} {f1} <a + b = c>.", "So together they make {c_craft} an hour.", "{f2} <c * h = d>.", "So they make {d_craft} in all.")),
    Spec("fill", "b=r(2,20) q=r(3,12) a=r(5,90) t=a+b*q", (
        "A {pot} holds {t_liter} of water.|There is room for {t_liter} of water in a {pot}.", "It already has {a_liter} in it.|There are already {a_liter} in it.",
        "{N} fills in {b_liter} every minute.|Every minute {b_liter} flow in."),
         "How many minutes does it take until the {pot} is full?|After how many minutes is the {pot} full?",
         ("{f0} {f1} <t - a = c>.", "{f2} <c / b = q>.", "So it takes {q_minute}.")),
    Spec("leak", "b=r(2,12) h=r(2,9) d=r(5,200) t=b*h+d", (
        "A {pot} holds {t_liter} of water.|There are {t_liter} of water in a {pot}.", "It loses {b_liter} every hour.|Every hour {b_liter} run out."),
         "How many liters are left after {h_hour}?|How many liters of water are in the {pot} after {h_hour}?",
         ("{f1} <b * h = c>.", "{f0} <t - c = d>.", "So there are {d_liter} left.")),
    Spec("growth", "a=r(5,90) b=r(2,9) k=r(2,12)", (
        "A {grower} is {a_inch} tall.|Now a {grower} is {a_inch} tall.", "It grows {b_inch} every month.|Every month it grows {b_inch}."),
         "How tall is the {grower} after {k_month}, in inches?|How many inches tall is the {grower} in {k_month}?",
         ("{f1} <b * k = c>.", "{f0} <a + c = d>.", "So the {grower} is {d_inch} tall.")),
    # Ages
    Spec("older", "a=r(4,30) b=r(2,30) c=r(2,15)", (
        "{N} is {a_year} old.|Today {N} is {a_year} old.", "{M} is {b_year} older than {N}.|{N} is {b_year} younger than {M}."),
         "How old will {M} be in {c_year}?|What will be the age of {M} in {c_year}?",
         ("{f0} {f1} <a + b = s>.", "So {M} is {s_year} old.", "<s + c = d>.", "So {M} will be {d_year} old."), True, AGE),
    Spec("younger", "a=r(20,60) b=r(2,a-12) c=r(2,a-b-2)", (
        "{N} is {a_year} old.|Today {N} is {a_year} old.", "{M} is {b_year} younger than {N}.|{N} is {b_year} older than {M}."),
         "How old was {M} {c_year} ago?|What was the age of {M} {c_year} ago?",
         ("{f0} {f1} <a - b = s>.", "So {M} is {s_year} old.", "<s - c = d>.", "So {M} was {d_year} old."), True, AGE),
    Spec("twice_age", "a=r(4,35) c=r(2,15)", (
        "{N} is {a_year} old.|Today {N} is {a_year} old.", "{M} is twice as old as {N}.|{N} is half as old as {M}."),
         "How old will {M} be in {c_year}?|What will be the age of {M} in {c_year}?",
         ("{f0} {f1} <a * 2 = s>.", "So {M} is {s_year} old.", "<s + c = d>.", "So {M} will be {d_year} old."), True, AGE),
    Spec("age_sum", "a=r(4,20) k=r(2,4) b=r(2,20)", (
        "{N} is {a_year} old.|Today {N} is {a_year} old.", "{M} is {k} times as old as {N}.|The age of {M} is {k} times the age of {N}.",
        "{P} is {b_year} older than {N}.|{N} is {b_year} younger than {P}."),
         "What is the sum of the three ages?|How old are the three of them together?",
         ("{f0} {f1} <a * k = c>.", "So {M} is {c_year} old.", "{f2} <a + b = d>.", "So {P} is {d_year} old.", "<a + c + d = g>.",
          "So they are {g_year} old together."), False, AGE),
    # Fractions and percent
    Spec("half_class", "c=r(6,60) t=2*c", (
        "There are {t_student} in a school.|A school has {t_student}.", "Half of them play {sport}.|Half of the students play {sport}."),
         "How many students play {sport}?|What is the number of students who play {sport}?",
         ("{f0} {f1} <t / 2 = c>.", "So {c_student} play {sport}.")),
    Spec("third_rest", "c=r(3,40) t=3*c", (
        HAS_T, "{N} gives a third of the {thing} to {M}.|{M} gets a third of the {thing} from {N}."),
         "How many {thing} does {N} have left?|How many {thing} does {N} keep?",
         ("{f0} {f1} <t / 3 = c>.", "So {M} gets {c_thing}.", "<t - c = d>.", "So {N} has {d_thing} left.")),
    Spec("quarter_then", "c=r(4,30) t=4*c b=r(2,3*c-1)", (
        HAS_T, "{N} gives a quarter of the {thing} to {M}.|{M} gets a quarter of the {thing} from {N}.", "{N} then loses {b_thing}.|After that {N} sells {b_thing}."),
         "How many {thing} does {N} have left?|How many {thing} does {N} have in the end?",
         ("{f0} {f1} <t / 4 = c>.", "So {M} gets {c_thing}.", "<t - c = d>.", "{f2} <d - b = g>.", "So {N} has {g_thing} left.")),
    Spec("half_half", "d=r(3,40) t=4*d", (
        HAS_T, "{N} gives half of the {thing} to {M}.|{M} gets half of the {thing} from {N}.", "Then {N} gives half of the rest to {P}.|{P} gets half of the rest."),
         "How many {thing} does {N} have left?|How many {thing} does {N} keep?",
         ("{f0} {f1} <t / 2 = c>.", "{f2} <c / 2 = d>.", "So {N} has {d_thing} left.")),
    Spec("double_day", "a=r(3,90) b=r(2,60)", (
        "On Monday a stand has {a_fruit}.|On Monday there are {a_fruit} at a stand.", "On Tuesday there are twice as many {fruit}.|On Tuesday the number is twice as large.",
        "On Wednesday there are {b_more_fruit} than on Tuesday.|On Wednesday the number is {b} more than on Tuesday."),
         "How many {fruit} are there on Wednesday?|What is the number of {fruit} on Wednesday?",
         ("{f0} {f1} <a * 2 = c>.", "{f2} <c + b = d>.", "So there are {d_fruit} on Wednesday.")),
    Spec("percent_of", "p=pick(10,20,25,30,40,50,60,70,75,80,90) t=20*r(2,25)", (
        "There are {t_student} in a school.|A school has {t_student}.", "Of them, {p}% play {sport}.|{p}% of the students play {sport}."),
         "How many students play {sport}?|What is the number of students who play {sport}?",
         ("{f0} {f1} <p % t = c>.", "So {c_student} play {sport}.")),
    Spec("percent_rest", "p=pick(10,20,25,30,40,50,60,70,75,80,90) t=20*r(2,25)", (
        "A farmer has {t_fruit}.|There are {t_fruit} on a farm.", "On Monday the farmer sells {p}% of the {fruit}.|The farmer sells {p}% of the {fruit}."),
         "How many {fruit} are left?|How many {fruit} are not sold?",
         ("{f0} {f1} <p % t = c>.", "So the farmer sells {c_fruit}.", "<t - c = d>.", "So the farmer has {d_fruit} left.")),
    Spec("discount", "p=pick(10,20,25,30,40,50) t=20*r(1,20)", (
        "{goal.A} costs ${t}.|The price of {goal.a} is ${t}.", "On sale it is {p}% cheaper.|Today it is {p}% cheaper."),
         "How many dollars does {N} pay for the {goal.one}?|What does {N} pay for it now, in dollars?",
         ("{f0} {f1} <p % t = c>.", "So the price is ${c} lower.", "<t - c = d>.", "So {N} pays ${d}.")),
    # Days and totals
    Spec("three_days", "a=r(3,120) b=r(3,120) c=r(3,120)", (
        "On Monday {N} picks {a_fruit}.|{N} picks {a_fruit} on Monday.", "On Tuesday {he} picks {b_fruit}.|On Tuesday {N} picks {b_fruit}.", "On Wednesday {he} picks {c_fruit}.|On Wednesday {N} picks {c_fruit}."),
         "How many {fruit} does {N} pick in all?|How many {fruit} is that in the three days together?",
         ("{f0} {f1} {f2} <a + b + c = d>.", "So {N} picks {d_fruit} in all.")),
    Spec("more_next_day", "a=r(3,90) b=r(2,60)", (
        "On Monday {N} makes {a_craft}.|{N} makes {a_craft} on Monday.", "On Tuesday {he} makes {b_more_craft} than on Monday.|On Tuesday {N} makes {b_more_craft} than on Monday."),
         "How many {craft} does {N} make in all?|How many {craft} is that in the two days together?",
         ("{f0} {f1} <a + b = c>.", "So {N} makes {c_craft} on Tuesday.", "<a + c = d>.", "So {N} makes {d_craft} in all.")),
    Spec("twice_fewer_day", "a=r(5,60) b=r(2,2*a-1)", (
        "On Monday {N} bakes {a_baked}.|{N} bakes {a_baked} on Monday.", "On Tuesday {he} bakes twice as many as on Monday.|On Tuesday {N} bakes twice as many as on Monday.",
        "On Wednesday {he} bakes {b_fewer_baked} than on Tuesday.|On Wednesday {N} bakes {b_fewer_baked} than on Tuesday."),
         "How many {baked} does {N} bake in all?|How many {baked} is that in the three days together?",
         ("{f0} {f1} <a * 2 = c>.", "{f2} <c - b = d>.", "<a + c + d = g>.", "So {N} bakes {g_baked} in all.")),
    Spec("read_left", "a=r(5,40) k=r(2,9) d=r(5,200) t=a*k+d", (
        "{N} reads a {text.one} of {t_page}.|The {text.one} of {N} has {t_page}.", "Every day {N} reads {a_page}.|{He} reads {a_page} a day."),
         "How many pages are left after {k_day}?|How many pages does {N} still have to read after {k_day}?",
         ("{f1} <a * k = c>.", "{f0} <t - c = d>.", "So {N} has {d_page} left.")),
    Spec("read_days", "b=r(4,20) q=r(2,12) a=r(5,90) t=a+b*q", (
        "{N} reads a {text.one} of {t_page}.|The {text.one} of {N} has {t_page}.", "So far {N} has read {a_page}.|{N} has already read {a_page}.", "From now on {he} reads {b_page} a day.|From now on {N} reads {b_page} every day."),
         "How many more days does {N} need for the rest?|In how many days does {N} finish the {text.one}?",
         ("{f0} {f1} <t - a = c>.", "{f2} <c / b = q>.", "So {N} needs {q_more_day}.")),
    Spec("eat_days", "a=r(3,9) b=r(4,12) c=r(2,6) k=r(2,a*b//c-1)", (
        "{N} buys {a_box} of {baked}.|{N} has {a_box} of {baked}.", "There are {b_baked} in each {box.one}.|Each {box.one} holds {b_baked}.", "Every day {N} eats {c_baked}.|{N} eats {c_baked} a day."),
         "How many {baked} are left after {k_day}?|How many {baked} does {N} have after {k_day}?",
         ("{f0} {f1} <a * b = s>.", "{f2} <c * k = u>.", "<s - u = d>.", "So {N} has {d_baked} left.")),
    Spec("hens", "a=r(2,12) b=r(2,6) q=r(2,9) k=pick(2,3,4,6)", (
        "A farm has {a_hen}.|There are {a_hen} on a farm.", "Each hen lays {k_egg} a week.|Every hen lays {k_egg} a week.", "The eggs are packed into cartons of {k}.|The farmer puts {k_egg} into each carton.",
        "The farmer collects the eggs for {b_week}.|The eggs of {b_week} are collected."),
         "How many cartons are filled?|How many cartons does the farmer fill?",
         ("{f0} {f1} <a * k = c>.", "{f3} <c * b = d>.", "{f2} <d / k = g>.", "So the farmer fills {g_carton}.")),
    Spec("bake_pack", "a=r(2,9) b=r(4,12) d=r(2,9) q=r(2,12) c=a*b-d*q", (
        "{N} bakes {a_tray} of {baked}.|{N} takes {a_tray} of {baked} out of the oven.", "Each tray has {b_baked} on it.|There are {b_baked} on each tray.", "The family eats {c} of them.|{N} and the family eat {c} of them.",
        "{N} packs the rest into bags of {d}.|The rest is packed into bags of {d}."),
         "How many bags does {N} fill?|What is the number of full bags?",
         ("{f0} {f1} <a * b = s>.", "{f2} <s - c = u>.", "{f3} <u / d = q>.", "So {N} fills {q_bag}.")),
    # Counting, measuring and more
    Spec("bus", "a=r(10,60) b=r(2,a-2) c=r(2,30)", (
        "A bus starts with {a_person} on board.|There are {a_person} on a bus.", "At the first stop {b_person} get off.|At the library {b_person} get off.", "Then {c_person} get on.|At the same stop {c_person} get on."),
         "How many people are on the bus now?|What is the number of people on the bus after that?",
         ("{f0} {f1} <a - b = s>.", "{f2} <s + c = d>.", "So there are {d_person} on the bus."), False, "bus"),
    Spec("bus_two", "a=r(10,50) b=r(2,30) c=r(2,a+b-5) d=r(2,30)", (
        "A bus starts with {a_person} on board.|There are {a_person} on a bus.", "At the first stop {b_person} get on.|At the school {b_person} get on.",
        "At the second stop {c_person} get off and {d_person} get on.|At the next stop {c_person} get off and {d_person} get on."),
         "How many people are on the bus now?|What is the number of people on the bus after that?",
         ("{f0} {f1} <a + b = s>.", "{f2} <s - c = u>.", "<u + d = v>.", "So there are {v_person} on the bus."), False, "bus"),
    Spec("legs", "a=r(2,20) b=r(2,20)", (
        "A farmer has {a_hen}.|There are {a_hen} on a farm.", "The farmer has {b_cow}.|There are {b_cow} on the farm."),
         "How many legs do all these animals have?|How many legs do the hens and the cows have together?",
         ("{f0} A hen has 2 legs. <a * 2 = c>.", "{f1} A cow has 4 legs. <b * 4 = d>.", "<c + d = g>.", "So they have {g_leg} together.")),
    Spec("wheels", "a=r(2,20) b=r(2,20)", (
        "There are {a_bike} in a yard.|A shop has {a_bike}.", "There are {b_car} beside them.|There are {b_car} next to them."),
         "How many wheels do the bikes and the cars have together?|What is the total number of wheels?",
         ("{f0} A bike has 2 wheels. <a * 2 = c>.", "{f1} A car has 4 wheels. <b * 4 = d>.", "<c + d = g>.", "So they have {g_wheel} together.")),
    Spec("points", "a=r(2,15) b=r(2,15) c=r(1,9)", (
        "In a game {N} makes {a_shot} for 3 points each.|{N} makes {a_shot} for 3 points each.", "{He} makes {b_shot} for 2 points each.|{N} also makes {b_shot} for 2 points each."),
         "How many points does {N} score in all?|What is the total score of {N}?",
         ("{f0} <a * 3 = s>.", "{f1} <b * 2 = t>.", "<s + t = u>.", "So {N} scores {u_point} in all.")),
    Spec("fence", "a=r(4,60) b=r(3,40)", (
        "A garden is {a_length} long.|The long side of a garden is {a_length}.", "It is {b_length} wide.|The short side is {b_length}."),
         "How many {length} of fence does {N} need to go all around the garden?|How long is the whole edge of the garden, in {length}?",
         ("{f0} {f1} <a + b = s>.", "There are two sides of each kind. <s * 2 = d>.", "So the whole edge is {d_length} long.")),
    Spec("tiles", "a=r(3,30) b=r(3,9) p=r(2,5)", (
        "A floor is {a_length} long and {b_length} wide.|{N} has a floor that is {a_length} long and {b_length} wide.", "Tiles cost ${p} for one square {length.one}.|One square {length.one} of tiles costs ${p}."),
         "How many dollars do the tiles for the floor cost?|How much does {N} pay for the tiles of the whole floor, in dollars?",
         ("{f0} <a * b = s>.", "{f1} <s * p = c>.", "So the tiles cost ${c}.")),
    Spec("cut", "b=r(2,12) k=r(2,9) d=r(1,40) t=b*k+d", (
        "A {strip} is {t_length} long.|{N} has a {strip} of {t_length}.", "{N} cuts off {k_piece} of {b_length} each.|{N} cuts {k_piece} from it, each {b_length} long."),
         "How many {length} of the {strip} are left?|How long is the rest of the {strip}, in {length}?",
         ("{f1} <k * b = c>.", "{f0} <t - c = d>.", "So the rest is {d_length} long.")),
    Spec("average", "m=r(20,95) x=r(1,9) y=r(1,9) a=m+x b=m-y c=m-x+y", (
        "In the first test {N} gets {a_point}.|The first score of {N} is {a_point}.", "In the second test {he} gets {b_point}.|The second score is {b_point}.", "In the third test {he} gets {c_point}.|The third score is {c_point}."),
         "What is the average of the three scores?|What is the average score of {N}?",
         ("{f0} {f1} {f2} <a + b + c = s>.", "There are 3 scores. <s / 3 = m>.", "So the average is {m_point}.")),
    Spec("garden", "a=r(3,12) b=r(3,12) c=r(2,9)", (
        "{N} has {a_row} of {fruit.one} plants.|There are {a_row} of {fruit.one} plants in the garden of {N}.", "Each row has {b_plant}.|There are {b_plant} in each row.", "Each plant gives {c_fruit}.|{N} picks {c_fruit} from each plant."),
         "How many {fruit} does {N} get in all?|What is the total number of {fruit}?",
         ("{f0} {f1} <a * b = s>.", "{f2} <s * c = d>.", "So {N} gets {d_fruit} in all.")),
    Spec("album", "a=r(4,20) b=r(4,9) c=r(3,a*b-1)", (
        "An album has {a_page}.|{N} has an album with {a_page}.", "There is room for {b_photo} on each page.|Each page holds {b_photo}.", "{N} has put in {c_photo} so far.|So far {c_photo} are in the album."),
         "How many more photos fit into the album?|How many photos does {N} need to fill the rest of the album?",
         ("{f0} {f1} <a * b = s>.", "{f2} <s - c = d>.", "So {d_more_photo} can go in.")),
    Spec("trip_buses", "k=pick(10,12,15,20,25,30,40,50) q=r(2,9) b=r(2,12) t=k*q-b", (
        "{t_student} go on a school trip.|A trip is planned for {t_student}.", "{b_teacher} go with them.|There are also {b_teacher}.", "Each bus has {k_seat}.|There are {k_seat} in each bus."),
         "How many buses are needed if all seats are taken?|How many full buses is that?",
         ("{f0} {f1} <t + b = s>.", "{f2} <s / k = q>.", "So the school needs {q_bus}."), False, "bus"),
    Spec("windows", "a=r(3,12) b=r(4,12) c=r(3,a*b-1)", (
        "A building has {a_floor}.|{N} works in a building with {a_floor}.", "Each floor has {b_window}.|There are {b_window} on each floor.", "{N} has cleaned {c_window}.|So far {N} has cleaned {c_window}."),
         "How many windows does {N} still have to clean?|How many windows are not clean yet?",
         ("{f0} {f1} <a * b = s>.", "{f2} <s - c = d>.", "So {N} still has to clean {d_window}.")),
    Spec("socks", "a=r(3,40) b=r(1,2*a-2)", (
        "{N} has {a_pair} of socks.|There are {a_pair} of socks in the drawer of {N}.", "{N} loses {b_sock}.|{b_sock} went missing."),
         "How many single socks does {N} have left?|How many socks are left?",
         ("{f0} <a * 2 = c>.", "{f1} <c - b = d>.", "So {N} has {d_sock} left.")),
    Spec("dozen", "a=r(2,12) b=r(2,12*a-1)", (
        "{N} buys {a} dozen eggs.|There are {a} dozen eggs in the kitchen of {N}.", "{N} uses {b_egg} for cakes.|{N} cooks {b_egg}."),
         "How many eggs are left?|How many eggs does {N} have left?",
         ("{f0} A dozen is 12. <a * 12 = c>.", "{f1} <c - b = d>.", "So {N} has {d_egg} left.")),
    Spec("recipe", "k=r(2,6) b=r(2,9) m=r(2,9) t=k*m", (
        "A recipe for {k_person} needs {b_egg}.|For {k_person} a cook uses {b_egg}.", "{N} cooks for {t_person}.|{N} invites {t_person} and cooks for them."),
         "How many eggs does {N} need?|How many eggs are needed?",
         ("{f0} {f1} <t / k = m>.", "That is {m} times the recipe. <b * m = c>.", "So {N} needs {c_egg}.")),
    Spec("weights", "a=r(3,20) b=r(2,9) c=r(10,90)", (
        "A cart holds {a_sack}.|{N} puts {a_sack} on a cart.", "Each sack weighs {b_kilogram}.|The weight of each sack is {b_kilogram}.", "The empty cart weighs {c_kilogram}.|Without the sacks the cart weighs {c_kilogram}."),
         "How many kilograms do the cart and the sacks weigh together?|What is the total weight in kilograms?",
         ("{f0} {f1} <a * b = s>.", "{f2} <s + c = d>.", "So the total weight is {d_kilogram}.")),
    Spec("race", "a=r(2,12) p=r(2,9) k=r(2,9)", (
        "For every {far.one} that {N} runs, a school gets ${p}.|A school gets ${p} for every {far.one} that {N} runs.", "{N} runs {a_far} a day.|Every day {he} runs {a_far}."),
         "How many dollars does the school get after {k_day}?|How much money does the school get in {k_day}, in dollars?",
         ("{f1} <a * k = c>.", "So {N} runs {c_far} in {k_day}.", "{f0} <c * p = d>.", "So the school gets ${d}.")),
    Spec("boys_girls", "a=r(8,60) b=r(2,30) k=r(2,3)", (
        "A school choir has {a_girl}.|There are {a_girl} in a choir.", "There are {b} more boys than girls in it.|It has {b} more boys than girls."),
         "How many children are in the choir?|What is the number of children in the choir?",
         ("{f0} {f1} <a + b = c>.", "So there are {c_boy}.", "<a + c = d>.", "So there are {d_child} in the choir.")),
    Spec("teams", "k=r(2,12) q=r(2,12) a=r(3,k*q-3) b=k*q-a", (
        "{a_girl} and {b_boy} come to the {sport} club.|At the {sport} club there are {a_girl} and {b_boy}.", "They make teams of {k}.|The coach makes teams of {k}."),
         "How many teams are there?|How many teams do they make?",
         ("{f0} <a + b = s>.", "{f1} <s / k = q>.", "So there are {q_team}.")),
)
