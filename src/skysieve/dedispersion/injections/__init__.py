"""How complete a search is: pulses of known S/N are added to noise or to data, searched for, and counted."""
