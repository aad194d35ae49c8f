"""Forms of secrets that Kingfisher knows, drawn at random so that no file of this repository has one."""

import json
import random
import string

_UPPER, _DIGITS, _HEX = string.ascii_uppercase, string.digits, "0123456789abcdef"
_LETTERS = string.ascii_letters + _DIGITS
_URL_SAFE = _LETTERS + "_-"


def secret_forms(seed: int = 20) -> dict[str, str]:
    """A line, or a few, with a secret of each form."""
    generator = random.Random(seed)

    def draw(length: int, alphabet: str = _LETTERS) -> str:
        while True:  # until it has a digit, as nearly all do
            text = "".join(generator.choice(alphabet) for _ in range(length))
            if any(character in _DIGITS for character in text):
                return text

    def draw_letters(length: int) -> str:
        return "".join(generator.choice(string.ascii_letters) for _ in range(length))

    def key(name: str) -> str:
        lines = [draw(64, _LETTERS + "+/") for _ in range(12)]
        return "\n".join([f"-----BEGIN {name}-----", *lines, f"-----END {name}-----"])

    return {
        "Hugging Face user": f"hf_{draw_letters(34)}",
        "Hugging Face organization": f"api_org_{draw_letters(34)}",
        "Weights & Biases, new": f"wandb_v1_{draw(77)}",
        "Weights & Biases, by name": f"WANDB_API_KEY={draw(40, _HEX)}",
        "GitHub personal": f"ghp_{draw(36)}",
        "GitHub OAuth": f"gho_{draw(36)}",
        "GitHub server": f"ghs_{draw(36)}",
        "GitHub fine-grained": f"github_pat_{draw(22)}_{draw(59)}",
        "GitLab personal": f"glpat-{draw(20)}",
        "GitLab deploy": f"gldt-{draw(20)}",
        "GitLab runner": f"glrt-{draw(20)}",
        "npm": f"npm_{draw(36)}",
        "PyPI": f"pypi-AgEIcHlwaS5vcmc{draw(150, _URL_SAFE)}",
        "Docker Hub": f"dckr_pat_{draw(27, _URL_SAFE)}",
        "OpenAI, old": f"sk-{draw(20)}T3BlbkFJ{draw(20)}",
        "Anthropic": f"sk-ant-api03-{draw(93, _URL_SAFE)}AA",
        "OpenRouter": f"sk-or-v1-{draw(64, _HEX)}",
        "Groq": f"gsk_{draw(52)}",
        "xAI": f"xai-{draw(80)}",
        "Perplexity": f"pplx-{draw(48)}",
        "Replicate": f"r8_{draw(37)}",
        "NVIDIA": f"nvapi-{draw(64, _URL_SAFE)}",
        "Together": f"tgp_v1_{draw(43, _URL_SAFE)}",
        "Pinecone": f"pcsk_{draw(5)}_{draw(63)}",
        "RunPod": f"rpa_{draw(46, _UPPER + _DIGITS)}",
        "Google API key": f"AIza{draw(35, _URL_SAFE)}",
        "Google service account": json.dumps({"type": "service_account", "private_key": key("PRIVATE KEY")}),
        "Databricks": f"dapi{draw(32, _HEX)}",
        "DigitalOcean": f"dop_v1_{draw(64, _HEX)}",
        "Cloudflare, by name": f"CLOUDFLARE_API_TOKEN: {draw(40, _URL_SAFE)}",
        "Heroku": f"HRKU-AA{draw(58, _URL_SAFE)}",
        "Terraform": f"{draw(14)}.atlasv1.{draw(67, _URL_SAFE)}",
        "Doppler": f"dp.pt.{draw(43)}",
        "Supabase": f"sbp_{draw(40, _HEX)}",
        "Grafana": f"glsa_{draw(32)}_{draw(8, _HEX)}",
        "Sentry": f"sntryu_{draw(64, _HEX)}",
        "Stripe": f"sk_live_{draw(24)}",
        "Stripe, restricted": f"rk_live_{draw(24)}",
        "Shopify": f"shpat_{draw(32, _HEX)}",
        "Square": f"sq0atp-{draw(22)}",
        "Slack bot": f"xoxb-{draw(12, _DIGITS)}-{draw(13, _DIGITS)}-{draw(24)}",
        "Slack app": f"xapp-1-{draw(11, _UPPER + _DIGITS)}-{draw(13, _DIGITS)}-{draw(64, _HEX)}",
        "Slack web hook": f"https://hooks.slack.com/services/T{draw(8, _DIGITS)}/B{draw(10, _DIGITS)}/{draw(24)}",
        "Twilio": f"SK{draw(32, _HEX)}",
        "SendGrid": f"SG.{draw(22)}.{draw(43)}",
        "Linear": f"lin_api_{draw(40)}",
        "Notion": f"ntn_{draw(11, _DIGITS)}{draw(35)}",
        "Airtable": f"pat{draw(14)}.{draw(64, _HEX)}",
        "Postman": f"PMAK-{draw(24, _HEX)}-{draw(34, _HEX)}",
        "Figma": f"figd_{draw(40, _URL_SAFE)}",
        "password in a URL": f"https://ada:{draw(12)}@git.example.org/x.git",
        "password of a database": f"postgresql://ada:{draw(12)}@db.example.org:5432/runs",
        "SSH private key": key("OPENSSH PRIVATE KEY"),
        "RSA private key": key("RSA PRIVATE KEY"),
        "PGP private key": key("PGP PRIVATE KEY BLOCK"),
        "age key": f"AGE-SECRET-KEY-1{draw(58, 'QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L')}",
    }
