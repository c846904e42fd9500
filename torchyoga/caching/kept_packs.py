"""stub"""


def kept_packing(name, stale, ref, request):
    raise NotImplementedError
