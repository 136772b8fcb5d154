"""A search for a transient gravitational wave over many templates, distinguished from a line in one detector."""

from skysieve.fstat import BSGL, Injection, search, synth_atoms

SPAN, START = 3 * 86400, 1_000_000_000
SIGNAL = Injection(t0=START + 86400, tau=43200, snr=13, window="exp")


def templates():
    for i in range(40):
        both = synth_atoms(START, SPAN, seed=i, inject=SIGNAL if i == 23 else None)
        if i == 8:  # the same 2F, in H1 alone
            both = [synth_atoms(START, SPAN, detectors=["H1"], seed=i, inject=SIGNAL)[0], both[1]]
        yield both


found = search(templates(), windows="exp", topk=5, bsgl=BSGL(Fstar0=10))
print(found)
print(found.to_table()["template", "max2F", "t0_ml", "tau_ml", "log10BSGL", "twoF_H1_bsgl", "twoF_L1_bsgl"])
assert found.columns()["template"][0] == 23
found.plot().savefig("transients.png")
