"""Words that people use for one another, in requests for a tool and in descriptions of one.

They count little beside the words themselves: a group says that two words may mean the same, not that they do.
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt

from ferrule.selection._stem import stem

SYNONYMS_SHARE = 0.45
"""The weight of another word of a group beside the original one, divided by the root of their number. By the benchmark
0.3 and 0.6 are a third of a point worse, and none and 0.9 more than half a point.
"""
_GROUPS = """
weather forecast temperature climate rain sunny umbrella snow humidity
stock share equity ticker investment invest investor portfolio trading dividend
hotel accommodation lodging hostel motel stay resort room airbnb
flight airline plane airplane aeroplane airport airfare fly aviation
restaurant dining eat dinner lunch cuisine food cafe
recipe cook cooking dish meal ingredient bake
movie film cinema
tv television show series episode
music song track album artist playlist band singer tune
lyrics song
image photo picture pic photograph wallpaper illustration
draw drawing art artwork paint painting sketch
delete remove erase drop clear destroy discard
create make generate new build produce compose add
write compose draft author
edit change modify update alter adjust revise
search find look locate discover lookup query seek
retrieve get fetch obtain read load return
list show display view see browse enumerate
buy purchase shop shopping order
store shop retailer marketplace ecommerce
product item goods merchandise
price cost fee pricing expense expensive cheap charge rate
deal discount coupon promotion offer sale bargain
cancel abort terminate stop end revoke undo
start begin launch initiate run execute
enable activate switch
disable deactivate
house home property estate apartment rent rental housing realtor
car vehicle auto automobile driving drive
charge charging ev electric
fuel gas gasoline petrol diesel
job career employment vacancy hiring recruit resume work occupation
salary wage income pay earnings
doctor physician medical health hospital clinic patient
disease illness symptom condition diagnosis
medicine drug medication prescription pharmacy
translate translation language interpret
convert conversion transform change
currency exchange money forex dollar euro
crypto bitcoin cryptocurrency ethereum coin blockchain wallet token nft
email mail inbox gmail
message sms text chat notify
notification alert reminder notify
meeting appointment schedule calendar event agenda
reserve reservation book booking
website web site webpage page url internet online
link url hyperlink
domain dns hostname whois
malware virus threat phishing scam suspicious
security secure safety protect vulnerability
login authenticate signin auth authorization
password credential passcode
file document doc
folder directory path
copy duplicate clone replicate
move transfer relocate send
rename name title
calculate compute calculation calculator evaluate solve
estimate predict forecast projection prediction
average mean
sum total add
subtract minus difference
compare comparison versus diff contrast difference
maximum max highest largest top greatest
minimum min lowest smallest
count number amount quantity tally
percentage percent ratio proportion
sort order rank
person people user individual member
profile account bio
customer client buyer
employee staff worker personnel
company business firm corporation enterprise organization startup brand
news headline article press story
summary summarize summarise digest overview
book novel literature author reading library
game gaming play player videogame
team club squad
match fixture game
league tournament competition championship season
football soccer
score result standings point goal
athlete player
school university college campus education student
course class lesson tutorial learn learning teach training
math mathematics algebra arithmetic
research paper academic scholar journal publication study scientific
fitness workout exercise gym training
diet nutrition calorie nutrient healthy
weight bmi mass
travel trip vacation journey tour itinerary tourism holiday
attraction sightseeing landmark destination
location place position coordinates address geolocation whereabouts
city town municipality
country nation
area region zone district neighborhood
near nearby close nearest around proximity
distance far length mile kilometer
route direction navigation navigate map path
traffic transit transport bus train metro subway commute
time clock timezone hour minute
date day calendar
birthday birth born
today current now latest recent
history historical past previous
random arbitrary
joke funny humor humour laugh pun meme
quote saying inspiration motivation inspirational
horoscope astrology zodiac tarot astrological
law legal lawyer attorney court regulation
tax vat taxation
loan mortgage lending
credit debt borrow
bank banking balance account
transaction payment transfer
pay payment checkout
invoice bill receipt billing
insurance policy coverage
budget spending expense finance financial
code programming program software developer script coding
repository repo github git
bug issue error problem defect fault
ticket issue request support
chart graph plot diagram visualize visualization visualise
video youtube clip footage
stream livestream broadcast
podcast audio sound voice speech
speak pronunciation say
pet dog cat animal puppy kitten
gift present
child kid children toddler baby
family parent
fashion clothes clothing outfit wear apparel dress shirt
beauty makeup cosmetic skincare
advice advise recommend recommendation suggestion suggest guidance tip idea
review rating feedback opinion
social media post tweet twitter facebook instagram
follower friend contact
comment reply respond answer
question quiz trivia ask
test exam assessment
validate verify check validation verification confirm
status state condition
monitor track tracking watch observe
parcel shipment package delivery shipping courier
analyze analysis analytics insight analyse statistics
statistics stats metrics figures
data dataset database
sql query database
spreadsheet excel csv table sheet
pdf document
slide presentation powerpoint slideshow
website seo keyword ranking
advertisement ad ads advertising campaign marketing
event concert festival show gig
star planet space astronomy satellite nasa orbit
earthquake disaster hurricane flood
air pollution quality aqi
energy power electricity
color colour palette hex rgb
font typography
logo icon brand
barcode qr
identifier id uuid guid key
encrypt encryption cipher decrypt hash
compress zip archive
upload submit import
download export save
install setup deploy
server host machine instance
network ip connection
phone mobile telephone cell
device hardware gadget
door lock unlock
light lamp bulb
wine beer drink beverage cocktail alcohol
garden plant flower
religion bible prayer quran
dating relationship romance partner
charity donation donate nonprofit
visa passport immigration
government politics election political vote president
population census demographic
war military army
chemistry chemical molecule compound element
physics force velocity acceleration
biology gene genetic dna protein
probability chance odds likelihood
word dictionary definition vocabulary meaning synonym
grammar spelling proofread
name nickname
essay writing content blog
transcript subtitle caption transcribe
plan planner planning organize
task todo checklist
goal target objective
note memo notepad
remember memory recall store
share publish post
vehicle truck motorcycle
engine motor
"""


@lru_cache(maxsize=1)
def _read_groups() -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for line in _GROUPS.split("\n"):
        group = dict.fromkeys(map(stem, line.split()))
        for term in group:
            found.setdefault(term, {}).update(group)
    return {term: tuple(one for one in others if one != term) for term, others in found.items()}


def find_synonyms(term: str) -> tuple[tuple[str, ...], float]:
    """Return the synonyms of `term`, and the weight of each."""
    others = _read_groups().get(term, ())
    return others, SYNONYMS_SHARE / sqrt(len(others)) if others else 0.0
