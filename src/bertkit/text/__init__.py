"""str → ids: corpora, vocabularies, tokenizers. Nothing here imports torch."""
